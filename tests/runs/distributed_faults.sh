#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests that `train_transformer --distributed` ends where a process is killed or hangs at a random moment: all others
# end within 10 s, and the last checkpoint is whole and can be continued.
# Usage: distributed_faults.sh PROGRAM MPIRUN [MOMENTS]      MOMENTS: 3 if not given.
set -euo pipefail
# shellcheck source=tests/support/program.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/program.sh" "$1"
mpirun=$2 moments=${3:-3}
write_text
run=(--data text.txt --width 16 --depth 1 --heads 2 --seq 16 --batch 8 --micro-batches 4 --threads 1 --sample 0
  --eval-every 0 --schedule constant --warmup 2 --distributed)
use_mpi
RANDOM=1

# Ids of this run's processes that are alive. Each has written its own and become the program.
alive() {
  local file
  for file in id.*; do
    [[ ! -d /proc/${file#id.} || $(cut -d ' ' -f 3 "/proc/${file#id.}/stat" 2> /dev/null) == [ZX] ]] ||
      echo "${file#id.}"
  done
}
seconds() { printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)); }

"$program" "${run[@]}" --steps 2 --save start.safetensors > /dev/null 2>&1 || fail "exit code $? of the first steps"
longest=0
for ((moment = 0; moment < moments; ++moment)); do
  processes=$((2 + RANDOM % 3)) rank=$((RANDOM % 4)) delay=$((RANDOM % 3000))
  case $((moment % 3)) in
    0) how=KILL ;;
    1) how=STOP ;;
    2) how=TERM ;;  # to mpirun
  esac
  rank=$((rank % processes))
  rm -f id.* rank.*
  cp start.safetensors run.safetensors
  # shellcheck disable=SC2016
  "$mpirun" -n $processes bash -c \
    'touch "id.$$"; echo $$ > "rank.${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}"; exec "$@"' bash \
    "$program" "${run[@]}" --wait-limit 2 --steps 1000000 --save run.safetensors --save-every 3 \
    --resume run.safetensors > out.txt 2> err.txt &
  mpirun_id=$!
  while [[ ! -s rank.$rank ]]; do sleep 0.01; done
  sleep "$(seconds $delay)"
  what="$how of rank $rank of $processes after $(seconds $delay) s"
  begin=$(date +%s%3N)
  if [[ $how == TERM ]]; then kill -TERM $mpirun_id; else kill -$how "$(cat rank.$rank)"; fi
  # mpirun that hangs after its last process (wait_for_mpirun) is killed below.
  for ((took = last = 0; took < 20000; took = $(date +%s%3N) - begin)); do
    if [[ -n $(alive) ]]; then
      last=$took
    elif ! kill -0 $mpirun_id 2> /dev/null; then
      break
    fi
    sleep 0.02
  done
  took=$last
  ((took <= longest)) || longest=$took
  ((took < 10000)) || fail "$what: processes $(alive | tr '\n' ' ')are alive after $(seconds $took) s"
  for id in $(alive) $mpirun_id; do kill -KILL "$id" 2> /dev/null || true; done
  code=0
  wait $mpirun_id 2> /dev/null || code=$?
  ((code != 0)) || fail "$what: exit code 0"
  [[ -s err.txt || $how == TERM ]] || fail "$what: no line on stderr"
  step=$(step_of run.safetensors)
  "$program" "${run[@]}" --steps $((step + 2)) --resume run.safetensors > resumed.txt 2>&1 ||
    fail "$what: the checkpoint of step $step cannot be continued: $(tail -n 1 resumed.txt)"
  grep -hE '^processes: |^train_transformer: ' err.txt > lines.txt || true
  printf '%s: all ended after %s s, checkpoint of step %s; %s\n' "$what" "$(seconds $took)" "$step" \
    "$(head -n 1 lines.txt)"
done
printf 'longest: %s s\n' "$(seconds $longest)"

# A temporary file that a killed writer has left does no harm, and the next checkpoint removes it.
touch run.safetensors.0123456789abcdef.part
"$program" "${run[@]}" --steps $((step + 2)) --resume run.safetensors --save run.safetensors > /dev/null 2>&1 ||
  fail "exit code $? beside a temporary file"
! compgen -G "run.safetensors.*.part" > left.txt || fail "temporary files are left: $(ls)"

# A limit that is no positive number.
"$program" "${run[@]}" --steps 2 --wait-limit 0 > out.txt 2> err.txt && fail "a limit of 0 is taken"
grep -q "^train_transformer: --wait-limit: Value 0 not in range" err.txt ||
  fail "no error of --wait-limit: $(cat err.txt)"

exit "$((failures > 0))"
