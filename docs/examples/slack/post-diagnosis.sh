#!/bin/sh
# Diagnoses telemetry, and posts the answer to Slack unless the job is healthy. Its exit code is the verdict.
#   SLACK_WEBHOOK_URL=https://hooks.slack.com/services/T/B/X post-diagnosis.sh FOLDER
set -u
message=$(mktemp)
trap 'rm -f "$message"' EXIT
rca diagnose --format slack -- "$1" > "$message"
verdict=$?
case $verdict in
  10 | 20 | 30)
    curl --silent --show-error --fail --output /dev/null --max-time 30 --retry 3 \
      --header 'Content-Type: application/json' --data-binary "@$message" "$SLACK_WEBHOOK_URL" || exit 1
    ;;
esac
exit "$verdict"
