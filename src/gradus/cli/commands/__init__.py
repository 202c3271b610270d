"""The commands of `gradus`, in the groups of its help. Each reads its options and calls the room that does the work.

Read in this order:

    generate.py, chat.py, serve.py    use a model
    clients/                          ask a server that runs: load, batch
    keys.py, deploy.py                the same: keys, deploy
    models.py       get one: models, pull, quantize, train-heads
    exercises.py    follow the course: exercise, check, solution, progress, diff, show, flat
    xray.py, demo.py, museum.py                the same: xray, demo, museum
    bench.py        measure: bench, report, profile
    speedrun.py     the same: speedrun
    course.py, health.py                       look around: phases, doctor
"""
