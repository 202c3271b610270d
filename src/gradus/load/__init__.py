"""Load: requests that a server gets, when it gets them, and how well it answers. No torch and no web framework here.

Read in this order. Each part imports only parts above it:

    jobs/              requests and their times
    answer.py          an answer and its times
    objective.py       what an answer has to reach to count
    measurements.py    the numbers that a run comes to
    asking/            clients: how requests are written, sent and read
    search.py          the highest rate that meets an objective, and the knee of a curve
    settings.py        every setting of `gradus load`
    trials.py          loads on one server: once, for several rates or numbers of users, or in search of a rate
    report.py          the numbers as tables and as JSON
    figure.py          a curve of them
    batch/             a file of requests, answered to a file

An *open* load sends each request when it is due, however late the server is: what independent users do. A *closed* load
has a number of users, and each sends its next request when it has an answer: a slow server is asked less often, so its
latencies look better than its users would find them.
"""
