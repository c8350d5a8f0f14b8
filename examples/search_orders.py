"""What each user has ordered so far, as documents of an OpenSearch index: exactly once, by user.

curl -X PUT 127.0.0.1:9200/totals -H 'Content-Type: application/json' \\
     -d '{"settings": {"index.gc_deletes": "7d"}}'
holdfast run examples/search_orders.py --checkpoint ck/search-orders
"""

import json
import os
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import holdfast as hf

URL = os.environ.get("SEARCH_URL", "http://127.0.0.1:9200")


def into(index):
    def write(rows, deletions, epoch):
        # The server refuses a document, or a deletion, whose version is lower than the one it has.
        newest = {"version": epoch, "version_type": "external_gte"}
        lines = []
        for row in rows.to_pylist():
            lines += [{"index": {"_id": row["user"], **newest}}, row]
        lines += [{"delete": {"_id": row["user"], **newest}} for row in deletions.to_pylist()]
        for item in bulk(index, lines):
            (done,) = item.values()
            if done["status"] == 429 or done["status"] >= 500:
                raise hf.Unavailable(f"OpenSearch did not take {done['_id']!r}: {done['error']}")
            if "error" in done and done["status"] != 409:  # 409: it has a newer version, and keeps it
                raise ValueError(f"OpenSearch refuses {done['_id']!r}: {done['error']}")

    return write


def bulk(index, lines):
    body = "".join(json.dumps(line) + "\n" for line in lines).encode()
    request = Request(f"{URL}/{index}/_bulk", body, {"Content-Type": "application/x-ndjson"})
    try:
        with urlopen(request, timeout=30) as answer:
            return json.load(answer)["items"]
    except HTTPError as refused:
        raise ValueError(f"OpenSearch refuses: {refused.read()[:500]!r}") from refused
    except OSError as cause:
        raise hf.Unavailable(f"OpenSearch at {URL} does not answer: {cause}") from cause


job = hf.Job("search-orders")
columns = {"user": "concat('user-', pmod(rnd, 50))", "amount": "pmod(id, 20)"}
orders = job.source(hf.GeneratorSource(columns, schema="user string, amount long", total=3_000), uid="orders")
orders.key_by("user").aggregate(orders=hf.count(), amount=hf.sum("amount"), uid="totals").sink(
    hf.UpsertSink(into("totals"), key="user", keeps_newest=True), uid="totals-out"
)

if __name__ == "__main__":
    job.run(checkpoint="ck/search-orders", until="exhausted")
