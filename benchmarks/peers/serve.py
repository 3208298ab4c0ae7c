"""The loop of a peer: a question on standard input, an answer on standard output, each a line of JSON.

It knows nothing of what is asked. A question {"versions": true} is answered with the versions of what
the peer runs on; a failure is answered as {"error": ...} and does not end the peer.
"""

import json
import sys
import traceback


def serve(answer, versions):
    """Answers questions until standard input ends.

    answer: a function of a question (a dict) that gives the answer (a dict).
    versions: by name, what to call the versions in a report.
    """
    for line in sys.stdin:
        question = json.loads(line)
        try:
            said = {"versions": versions} if question.get("versions") else answer(question)
        except Exception as error:
            traceback.print_exc()
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), flush=True)
