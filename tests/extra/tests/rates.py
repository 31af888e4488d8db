# Reads a list of texts, and says what each means to `limits`: its limits as amounts and seconds, or nothing.
import json
import sys

from limits import parse_many


def meaning(text):
    try:
        return [[str(limit.amount), str(limit.get_expiry())] for limit in parse_many(text)]
    except ValueError:
        return None


json.dump([meaning(text) for text in json.load(sys.stdin)], sys.stdout)
