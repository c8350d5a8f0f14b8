"""How often each word was sent over a socket, by a server that is told which lines are safe.

    holdfast run examples/socket_words.py --checkpoint ck/socket-words --guarantee at-least-once
"""

import os

import holdfast as hf

job = hf.Job("socket-words")
lines = job.source(
    hf.SocketSource("127.0.0.1", int(os.environ.get("WORDS_PORT", "9999")), acknowledged=True), uid="lines"
)
lines.key_by("value").aggregate(times=hf.count(), uid="words").sink(
    hf.FileSink("out/socket-words", format="json"), uid="words-out"
)

if __name__ == "__main__":
    job.run(checkpoint="ck/socket-words", guarantee="at-least-once")
