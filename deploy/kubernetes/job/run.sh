#!/bin/sh
# One pod of a transient cluster. The pod of index 0 runs the scheduler and the script, and ends with the script's exit code. The
# others are executors, which Kubernetes ends with the job.
#
# Exit codes: that of `volley`, 1 or 2, if the script has failed; 75 if the cluster has, so that another try may help.
#
# Environment: JOB_COMPLETION_INDEX, the pod's index; SCHEDULER, the host and port of index 0; HOST, the pod's own host name;
# EXECUTORS, how many of them the script waits for; WAIT, for how many seconds; SCRIPT, the file of statements.
set -eu

# Runs a command until it ends, and tells it to end when the pod is to. Its exit code is in $code.
run() {
  "$@" &
  child=$!
  trap 'kill -TERM "$child" 2>/dev/null || true' TERM INT
  while :; do
    code=0
    wait "$child" || code=$?
    # A signal ends the wait, and not the command.
    kill -0 "$child" 2>/dev/null || break
  done
}

# Only pods of the job reach each other, by the NetworkPolicy: the cluster has no tokens.
if [ "$JOB_COMPLETION_INDEX" != 0 ]; then
  run volley-executor --insecure --scheduler "$SCHEDULER" --bind 0.0.0.0 --advertise-host "$HOST" "$@"
  [ "$code" = 0 ] || exit 75
  exit 0
fi

volley-scheduler --insecure --bind "0.0.0.0:${SCHEDULER##*:}" --advertise-host "${SCHEDULER%:*}" --record none &
scheduler=$!
trap 'kill "$scheduler" 2>/dev/null || true' EXIT

registered() {
  volley executors --scheduler "$SCHEDULER" --format json 2>/dev/null | grep -c executor_id || true
}
deadline=$(($(date +%s) + WAIT))
until [ "$(registered)" -ge "$EXECUTORS" ]; do
  if ! kill -0 "$scheduler" 2>/dev/null; then
    echo "error: the scheduler has ended" >&2
    exit 75
  fi
  if [ "$(date +%s)" -ge "$deadline" ]; then
    echo "error: $(registered) of $EXECUTORS executors have registered within $WAIT s" >&2
    exit 75
  fi
  sleep 1
done

run volley --scheduler "$SCHEDULER" --file "$SCRIPT"
exit "$code"
