#!/bin/sh
# Diagnoses telemetry, and posts the answer to Slack unless the job is healthy. Its exit code is the verdict.
#   SLACK_WEBHOOK_URL=https://hooks.slack.com/services/T/B/X post-diagnosis.sh FOLDER
set -u
url=$(printf %s "${SLACK_WEBHOOK_URL:-}")
case $url in
  *[[:space:]\"\\]* | "") url= ;;
esac
if [ $# -ne 1 ] || [ -z "$url" ]; then
  echo "usage: SLACK_WEBHOOK_URL=https://hooks.slack.com/services/T/B/X $0 FOLDER" >&2
  exit 2
fi
message=$(mktemp)
trap 'rm -f "$message"' EXIT
rca diagnose --format slack -- "$1" > "$message"
verdict=$?
case $verdict in
  10 | 20 | 30)
    # Every user of the machine can read arguments, so the secret address is none.
    printf 'url = "%s"\n' "$url" | curl --config - --silent --show-error --fail --output /dev/null --max-time 30 \
      --retry 3 --header 'Content-Type: application/json' --data-binary "@$message" || exit 1
    ;;
esac
exit "$verdict"
