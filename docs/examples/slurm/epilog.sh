#!/bin/sh
# Diagnoses what a job collected, when it ends:
#   slurm.conf:      EpilogSlurmctld=/etc/slurm/epilog.sh
#   batch script:    export RCA_COLLECT_DIR=/shared/telemetry/$SLURM_JOB_ID
# The controller runs it as SlurmUser, who needs `rca` and may write into the folder. The answer is beside the
# telemetry. `sacct -j JOB -o JobID,AdminComment%120` shows its first line.
# A failure of this script is logged; it drains no node.
set -u

job=${SLURM_JOB_ID:?is set by the controller; set it to try the script}
folder=${RCA_TELEMETRY:-/shared/telemetry}/$job
# A job that collected nothing has no diagnosis.
[ -d "$folder" ] || exit 0

"${RCA:-rca}" diagnose "$folder" --format markdown --output "$folder/diagnosis.md"
verdict=$?
case $verdict in
0 | 10 | 20 | 30) headline=$(sed -n '1s/^# //p' "$folder/diagnosis.md") ;;
*) headline="no diagnosis; run: rca diagnose $folder" ;;
esac
scontrol update "JobId=$job" "AdminComment=$headline" || exit 1
exit "$verdict"
