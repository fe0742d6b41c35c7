#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests `train_transformer --distributed`: equal bits for 1, 2 and 4 processes, files of one process, and errors.
# Usage: distributed.sh PROGRAM [MPIRUN [all]]      Without MPIRUN the program was built without MPI. `all`: more
# recipes, and all kinds of sharing for each.
set -euo pipefail
# shellcheck source=tests/support/program.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/program.sh" "$1"
mpirun=${2:-}
write_text
run=(--data text.txt --width 16 --depth 1 --heads 2 --seq 16 --batch 8 --micro-batches 4 --threads 1 --sample 0
  --distributed)

if [[ -z $mpirun ]]; then
  bad '--distributed: this program was built without MPI; expected a build where CMake finds MPI$' "${run[@]}"
  exit "$((failures > 0))"
fi
use_mpi

# Every kind of scaling and storage, with dropout and stochastic rounding: 30 steps have the losses and the checkpoint
# of one process, also where processes share the optimiser's state, or gradients too, and send while they compute.
# Processes that share have less state each, by whole parameters.
feedback=(--set communication=e4m3 --set communication.block=32 --set communication.error_feedback=true)
recipes=(fp32 'fp16-auto-loss-scaled --set clip_norm=0.5' 'unit-fp8 --optimiser lamb' scalify-fp8-4 fp8-amax fp8-delayed
  nvfp4 "unit-fp8 ${feedback[*]}"
  'bf16 --set storage.master=bf16 --set storage.master.rounding=stochastic --set storage.first_moment=e4m3
   --set storage.first_moment.rounding=stochastic')
ways=('' --overlap '--shard optimiser' '--shard optimiser --overlap' '--shard gradients' '--shard gradients --overlap')
if [[ ${3:-} == all ]]; then
  recipes+=(bf16 fp16 fp16-histogram-loss-scaled fp16-log-normal-loss-scaled umup-fp8 us-fp16 fp8-cscale scalify-fp16-1
    scalify-fp16-static mxfp8 'nvfp4 --optimiser lamb --set clip_norm=0.5' "scalify-fp8-4 ${feedback[*]}")
fi
for ((i = 0; i < ${#recipes[@]}; ++i)); do
  read -r -d '' -a how <<< "${recipes[i]}" || true
  how=(--steps 30 --dropout 0.1 --recipe "${how[@]}")
  "$program" "${run[@]}" "${how[@]}" --log 1.jsonl --save 1.safetensors > out.txt 2>&1 ||
    fail "${how[*]}: $(cat out.txt)"
  whole=$(sed -nE 's/^0 +[0-9]+ +([0-9]+) +[0-9]+$/\1/p' out.txt)
  for processes in 2 4; do
    for ((w = 0; w < ${#ways[@]}; ++w)); do
      # Without `all` each recipe goes two ways in two processes, and two others in four.
      [[ ${3:-} == all ]] || (((w - i - processes / 2 + 12) % 3 == 0)) || continue
      read -r -a way <<< "${ways[w]}"
      what="${how[*]} ${way[*]}: $processes processes"
      timeout 120 "$mpirun" -n $processes "$program" "${run[@]}" "${how[@]}" "${way[@]}" --log $processes.jsonl \
        --save $processes.safetensors > out.txt 2> err.txt || fail "$what: $(cat err.txt)"
      [[ $(losses 1.jsonl) == "$(losses $processes.jsonl)" ]] || fail "$what: other losses"
      cmp -s 1.safetensors $processes.safetensors || fail "$what: another checkpoint"
      [[ $(wc -l < $processes.jsonl) == 30 ]] || fail "$what: $(wc -l < $processes.jsonl) lines of log"
      [[ $(grep -c '^result recipe=' out.txt) == 1 ]] || fail "$what: not one result line: $(cat out.txt)"
      parts=$(sed -nE 's/^[0-9]+ +[0-9]+ +([0-9]+) +[0-9]+$/\1/p' out.txt)
      [[ $(wc -l <<< "$parts") == "$processes" ]] || fail "$what: not $processes lines of memory: $(cat out.txt)"
      [[ ${way[*]} == *--shard* ]] || continue
      awk -v whole="$whole" '$1 > 0.8 * whole { bad = 1 } { sum += $1 } END {
        exit bad || sum < 0.98 * whole || sum > 1.02 * whole }' <<< "$parts" ||
        fail "$what: state of $whole bytes, shared as $parts"
    done
  done
done

# Two processes with a micro-batch each send half of every gradient, and the sum of the other half.
for bytes in 4 1; do
  how=()
  ((bytes == 4)) || how=(--set communication=e4m3)
  timeout 60 "$mpirun" -n 2 "$program" "${run[@]/#4/2}" --steps 2 --recipe fp32 "${how[@]}" > out.txt 2> err.txt ||
    fail "$bytes bytes: $(cat err.txt)"
  parameters=$(sed -nE 's/^model .*; ([0-9]+) parameters.*$/\1/p' out.txt)
  grep -q " sent_bytes_per_step=$((parameters * bytes))\$" out.txt || fail "$bytes bytes: $(tail -n 1 out.txt)"
done

# A checkpoint of some processes is continued by others, and by one, to the bit: it is the state of the run, without a
# process's own. Remainders of error feedback are of micro-batches. Metadata differ: they have a sum of last losses.
elements() { tail -c +$(($(od -An -tu8 -N8 "$1") + 9)) "$1"; }
for how in 'fp8-delayed' "fp32 ${feedback[*]}" "nvfp4 ${feedback[*]} --shard gradients"; do
  read -r -a half <<< "--recipe $how --seed 3 --schedule constant --warmup 2"
  "$program" "${run[@]}" "${half[@]}" --steps 30 --log whole.jsonl --save whole.safetensors > /dev/null 2>&1
  timeout 60 "$mpirun" -n 4 "$program" "${run[@]}" "${half[@]}" --steps 12 --save half.safetensors > /dev/null 2>&1 ||
    fail "$how: exit code $? of four processes"
  for processes in 1 2; do
    timeout 60 "$mpirun" -n $processes "$program" "${run[@]}" "${half[@]}" --steps 30 --resume half.safetensors \
      --log resumed.jsonl --save resumed.safetensors > /dev/null 2>&1 ||
      fail "$how: exit code $? of $processes processes that resume"
    [[ $(losses resumed.jsonl) == "$(tail -n 18 whole.jsonl > end.jsonl; losses end.jsonl)" ]] ||
      fail "$how: other losses after a checkpoint, in $processes processes"
    cmp -s <(elements resumed.safetensors) <(elements whole.safetensors) ||
      fail "$how: another end after a checkpoint, in $processes processes"
    rm -f resumed.jsonl
  done
done

# bad_run <exit code> <pattern of stderr> <argument of mpirun>...: expects one line of the program on stderr.
bad_run() {
  local want=$1 pattern=$2 code=0
  shift 2
  ends_by_error 60 "$@"
  [[ $code == "$want" ]] || fail "exit code $code instead of $want: $*: $(cat err.txt)"
  [[ $(grep -c '^train_transformer: ' err.txt) == 1 ]] || fail "not one line of the program: $*: $(cat err.txt)"
  grep -qE -- "^train_transformer: .*$pattern" err.txt || fail "no '$pattern' on stderr: $*: $(cat err.txt)"
}
bad_run 2 ' 8 micro-batches, and the checkpoint has .* remainders of 4; expected as many$' \
  -n 2 "$program" "${run[@]/#4/8}" "${half[@]}" --steps 30 --resume half.safetensors
"$program" "${run[@]}" --recipe fp32 --seed 3 --steps 2 --save plain.safetensors > /dev/null 2>&1
bad_run 2 'plain.safetensors: has no remainders of error feedback; expected a run that was saved with them, or ' \
  -n 2 "$program" "${run[@]}" --recipe fp32 --seed 3 "${feedback[@]}" --steps 30 --resume plain.safetensors
sed 's/early/late/' text.txt > other.txt
run+=(--steps 30)
one=(-n 1 "$program" "${run[@]}" --recipe fp32)
bad_run 2 '--lr: is 0; expected a positive number$' -n 4 "$program" "${run[@]}" --lr 0
bad_run 2 "--sped" -n 2 "$program" "${run[@]}" --sped 1
bad_run 2 '--distributed: 8 processes share 4 micro-batches; expected --micro-batches of at least one for each$' \
  -n 8 "$program" "${run[@]}"
bad_run 2 '--report: is page.html; a page needs every micro-batch in one process, without --distributed$' \
  -n 2 "$program" "${run[@]}" --report page.html
bad_run 2 '--shard: is gradients; a run with --switch-at needs the whole state in every process$' \
  -n 2 "$program" "${run[@]}" --shard gradients --switch-at 2 --switch-to unit-fp8
bad_run 2 'processes: rank 1 has another options than rank 0: ' "${one[@]}" : "${one[@]}" --shard optimiser
bad_run 2 "processes: rank 1 has another seed than rank 0: '2', not '1'\$" "${one[@]}" : "${one[@]}" --seed 2
bad_run 2 'processes: rank 1 has another recipe than rank 0: ' "${one[@]}" : "${one[@]}" --set clip_norm=3
bad_run 2 'processes: rank 2 has another data than rank 0: ' "${one[@]}" : "${one[@]}" : "${one[@]}" --data other.txt
bad_run 2 'processes: rank 1 has another options than rank 0: ' "${one[@]}" : "${one[@]}" --weight-decay 0.1
# A process that fails alone ends the others, which wait for it.
bad_run 2 'rank 1: .*none.safetensors' "${one[@]}" : "${one[@]}" --resume none.safetensors

exit "$((failures > 0))"
