"""Models by name: the catalogue, where each model comes from, and how it is downloaded and checked.

Read in this order:

    catalogue.py    the models known by name, and the folder that they are kept in
    packages.py     pulling one: from the hub, or from packages of pip and npm that carry it
    hub.py          models by hub id
    npm.py          packages of npm;  download.py: what all downloads have in common
"""
