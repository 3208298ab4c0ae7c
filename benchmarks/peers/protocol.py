"""What every peer does: questions in, answers out, a line of JSON each.

Answers go to the file that was standard output at the start, so that what libraries print is apart.
"""

import json
import os
import sys
import traceback


def serve(answer):
    """Answers every question on standard input with what `answer(question)` returns, until its end."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            said = answer(json.loads(line))
        except Exception as error:
            traceback.print_exc()
            said = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(said) + "\n")
        out.flush()
