#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests `train_transformer --distributed` on two hosts: network namespaces of this machine, with a cable between them.
# Four processes have the bits of one. When the cable is cut, all processes end, and the checkpoint can be continued.
# Usage: distributed_network.sh PROGRAM MPIRUN      Exit code 77: no namespaces; that needs root and iproute2.
set -euo pipefail
here=unitscale-$$-a there=unitscale-$$-b
make_hosts() {
  ip netns add "$here" && ip netns add "$there" &&
    ip -n "$here" link add cable type veth peer name cable netns "$there" &&
    ip -n "$here" address add 10.77.0.1/24 dev cable && ip -n "$there" address add 10.77.0.2/24 dev cable &&
    ip -n "$here" link set lo up && ip -n "$there" link set lo up &&
    ip -n "$here" link set cable up && ip -n "$there" link set cable up
}
remove_hosts() {
  local host
  for host in $here $there; do
    ip netns pids "$host" 2> /dev/null | xargs -r kill -KILL 2> /dev/null || true
    ip netns delete "$host" 2> /dev/null || true
  done
}
if ! reason=$(make_hosts 2>&1); then
  remove_hosts
  printf 'distributed_network.sh: skipped, this user or machine has no network namespaces: %s\n' "${reason##*$'\n'}"
  exit 77
fi
# shellcheck source=tests/support/program.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../support/program.sh" "$1"
trap 'remove_hosts; rm -rf -- "$folder"' EXIT
mpirun=$2
use_mpi
write_text
run=(--data text.txt --width 16 --depth 1 --heads 2 --seq 16 --batch 8 --micro-batches 4 --threads 1 --sample 0
  --eval-every 0 --schedule constant --warmup 2 --distributed)

# Open MPI calls this in place of ssh, with a host and a command.
printf '%s\n' '#!/usr/bin/env bash' "shift; exec ip netns exec $there /bin/sh -c \"\$*\"" > agent
chmod +x agent
on_two_hosts() {  # on_two_hosts <processes of each host> <argument>...
  timeout 120 ip netns exec "$here" "$mpirun" -n $((2 * $1)) --host "10.77.0.1:$1,10.77.0.2:$1" \
    --map-by node --bind-to none --mca plm_rsh_agent "$PWD/agent" --mca btl tcp,self \
    --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 "$program" "${run[@]}" "${@:2}"
}

bytes() { ip netns exec "$there" cat /sys/class/net/cable/statistics/tx_bytes; }
for how in 'fp32' 'scalify-fp8-4 --shard optimiser' 'fp32 --shard gradients --overlap' \
  'unit-fp8 --set communication=e4m3 --set communication.error_feedback=true'; do
  read -r -a arguments <<< "--steps 10 --recipe $how"
  "$program" "${run[@]}" "${arguments[@]}" --log 1.jsonl --save 1.safetensors > out.txt 2>&1 ||
    fail "$how: $(cat out.txt)"
  before=$(bytes)
  on_two_hosts 2 "${arguments[@]}" --log 4.jsonl --save 4.safetensors > out.txt 2> err.txt ||
    fail "$how: $(cat err.txt)"
  [[ $(losses 1.jsonl) == "$(losses 4.jsonl)" ]] || fail "$how: other losses"
  cmp -s 1.safetensors 4.safetensors || fail "$how: another checkpoint"
  ((before + 10000 < $(bytes))) || fail "$how: the hosts did not talk over the cable"
done

# Nothing tells a process that the cable is cut: its wait ends. mpirun is not waited for, it knows no such limit.
cp 1.safetensors run.safetensors
on_two_hosts 1 --recipe unit-fp8 --steps 1000000 --wait-limit 2 --save run.safetensors --save-every 3 \
  > out.txt 2> err.txt &
programs() { pgrep -cf -- "^$program .*--steps 1000000" || true; }
for ((tries = 0; tries < 200; ++tries)); do
  cmp -s 1.safetensors run.safetensors || break  # a checkpoint is there
  sleep 0.1
done
ip -n "$here" link set cable down
begin=$(date +%s%3N) took=0
while (($(programs) > 0 && took < 20000)); do
  sleep 0.05
  took=$(($(date +%s%3N) - begin))
done
((took < 10000)) || fail "cut cable: $(programs) processes are alive after $took ms"
grep -qE '^train_transformer: processes: rank 0 has waited 2 s for rank 1' err.txt || fail "cut cable: $(cat err.txt)"
step=$(step_of run.safetensors)
"$program" "${run[@]}" --recipe unit-fp8 --steps $((step + 2)) --resume run.safetensors > out.txt 2>&1 ||
  fail "cut cable: the checkpoint of step $step cannot be continued: $(tail -n 1 out.txt)"
printf 'cut cable: all ended after %s ms, checkpoint of step %s\n' "$took" "$step"

exit "$((failures > 0))"
