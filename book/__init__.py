"""The course and its documentation as a web book: `make book`. Read contents.py, then conf.py.

contents.py  which pages there are, and in which order
conf.py      Sphinx's settings, and what is done to a page before and after Sphinx reads it
cover.py     the front page
flat.py      an engine in one file
demos.py     the phase before and a phase on one workload, inside its lesson
sources.py   the repository's files as pages, and the way to them from a lesson
tables.py    room for words in tables
words.py     the glossary under the words of every page, and formulas as MathML
search.py    the text that search looks through, in the browser
progress.py  a line every few seconds, from a quiet build
xray.py      a run of a phase, step by step, inside its lesson

The pages are the repository's own Markdown files, which GitHub shows as well: nothing in them is for the book alone.
"""
