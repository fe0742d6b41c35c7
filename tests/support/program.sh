# SPDX-License-Identifier: MIT
# For tests of programs, to be sourced with the program's path as argument.
# It sets `program`, changes to a folder that is removed at the end, and counts failures.
# shellcheck shell=bash
program=$(realpath -- "$1")
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
cd -- "$folder"
failures=0

# A program that is a script runs in an emulator (cmake/development.cmake), where limits of time are longer.
slower=1
[[ $(head -c 2 -- "$program" | tr -d '\0') != '#!' ]] || slower=20
timeout() { command timeout "$(($1 * slower))" "${@:2}"; }

# write_text: a text to train on, text.txt.
write_text() {
  local i
  for ((i = 0; i < 60; ++i)); do echo "the early bird catches the worm"; done > text.txt
}

# step_of <checkpoint>: the step after which it was saved.
step_of() { LC_ALL=C grep -aoE '"state/step":"[0-9]+"' "$1" | grep -oE '[0-9]+'; }

fail() {
  printf 'FAILED: %s\n' "$1" >&2
  failures=$((failures + 1))
}

# bad <pattern of stderr> <argument>...: runs the program with the arguments of the array `given` and these arguments.
# Expected: exit code 2, one line on stderr, nothing on stdout if `silent` is set, and no file that matches `begun`.
given=() begun='' silent=''
bad() {
  local pattern=$1 code=0
  shift
  timeout 60 "$program" "${given[@]}" "$@" > out.txt 2> err.txt || code=$?
  [[ $code == 2 ]] || fail "exit code $code instead of 2: $*: $(cat err.txt)"
  [[ $(wc -l < err.txt) == 1 ]] || fail "not one line on stderr: $*: $(cat err.txt)"
  grep -qE -- "^$(basename -- "$program"): .*$pattern" err.txt || fail "no '$pattern' on stderr: $*: $(cat err.txt)"
  [[ -z $silent || ! -s out.txt ]] || fail "wrote to stdout: $*: $(cat out.txt)"
  [[ -z $begun ]] || ! compgen -G "$begun" > /dev/null || fail "an output was begun: $*"
}

# losses <file>: the records of runs without their speeds and bytes sent, sorted
losses() { sed -E 's/"(tokens_per_s|seconds|sent_bytes)":[^,}]*//g' "$1" | LC_ALL=C sort; }

# survives_kills <argument>...: for a program that keeps its runs in FILE.jsonl and is killed again and again.
# Its runs end with the losses of runs that were not killed, and no run that has ended is made again.
survives_kills() {
  local kill run done_now done_before=0
  "$program" "$@" --out whole.html > /dev/null 2>&1 || fail "exit code $? of the whole"
  for ((kill = 0; kill < 6; ++kill)); do
    "$program" "$@" --jobs 2 --out killed.html > killed.txt 2>&1 &
    run=$!
    sleep "0.$((RANDOM % 5))$((RANDOM % 10))"
    kill -9 "$run" 2> /dev/null || true
    wait "$run" 2> /dev/null || true
    [[ ! -e killed.html || $(tail -n 1 killed.html) == *'</html>' ]] ||
      fail "a killed process has left a part of a page"
    done_now=0
    [[ ! -e killed.jsonl ]] || done_now=$(grep -c '^{"run":.*}$' killed.jsonl || true)
    ((done_now >= done_before)) || fail "a run that had ended is gone"
    done_before=$done_now
  done
  printf '{"run":{"recipe":' >> killed.jsonl  # the state after a kill in the middle of a line
  "$program" "$@" --jobs 2 --out killed.html > killed.txt 2>&1 ||
    fail "after kills: exit code $?: $(tail -n 1 killed.txt)"
  [[ $(losses whole.jsonl) == "$(losses killed.jsonl)" ]] || fail "killed runs end elsewhere, or were made twice"
  [[ ! -e killed.runs ]] || fail "unfinished runs are left: $(ls killed.runs)"
}

# processes_of <page> <kind>: the processes that write or make runs of a page, by the full path of the page.
# Kinds: `search`, as mpirun has started them, and `run`, which make one run each.
processes_of() {
  local process words kind
  for process in /proc/[0-9]*; do
    { mapfile -d '' -t words < "$process/cmdline"; } 2> /dev/null || continue
    [[ ${words[0]:-} == "$program" && " ${words[*]} " == *" $1 "* ]] || continue
    kind=search
    [[ " ${words[*]} " != *' --run '* ]] || kind=run
    [[ $kind != "$2" ]] || echo "${process##*/}"
  done
}

# kill_one <page> <kind>: waits until a run of the page is under way, and kills the youngest process of that kind.
kill_one() {
  local tries victims=() running=()
  for ((tries = 0; tries < 200; ++tries)); do
    mapfile -t running < <(processes_of "$1" run)
    mapfile -t victims < <(processes_of "$1" "$2" | sort -n)
    if ((${#running[@]} > 0 && ${#victims[@]} > 0)) && kill -9 "${victims[-1]}" 2> /dev/null; then return; fi
    sleep 0.05
  done
  fail "no process of $1 to kill"
}

# use_mpi: lets root start more processes than there are processors, in containers too.
use_mpi() {
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
  export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe OMP_WAIT_POLICY=passive
  export OMPI_MCA_plm_rsh_agent=false OMPI_MCA_btl_vader_single_copy_mechanism=none
}

# children_of <process>: its children that have not ended.
children_of() { sed -nE "s/^([0-9]+) \(.*\) [^ZX] $1 .*/\1/p" /proc/[0-9]*/stat 2> /dev/null || true; }

# wait_for_mpirun <job>: waits for the job `timeout SECONDS mpirun ...`, sets `code`, and returns 1 if mpirun failed:
# after an abort, PMIx_server_finalize of Open MPI 4.1.4 sometimes crashes, or waits for ever for a lock of its own.
# If mpirun goes on for 10 seconds after its last process has ended, it is killed.
wait_for_mpirun() {
  local launcher begun=0 alone=0 hung=0
  while kill -0 "$1" 2> /dev/null; do
    launcher=$(children_of "$(children_of "$1")")  # the job is a shell, and its child is timeout
    if [[ -n $launcher && -n $(children_of "$launcher") ]]; then
      begun=1 alone=0
    elif ((begun && ++alone > 100)); then
      kill -9 "$launcher" && hung=1
      break
    fi
    sleep 0.1
  done
  code=0
  wait "$1" || code=$?
  ((!hung)) && { ((code != 139)) || ! grep -q 'libpmix.*PMIx_server_finalize' err.txt; }
}

# ends_by_error <seconds> <argument>...: runs $mpirun with the arguments, sets `code`, and writes out.txt and err.txt.
# A run in which mpirun itself failed is made again.
ends_by_error() {
  local tries
  for ((tries = 0; tries < 20; ++tries)); do
    timeout "$1" "$mpirun" "${@:2}" > out.txt 2> err.txt &
    if wait_for_mpirun $!; then return; fi
  done
}

# shares_runs <mpirun, or nothing> <argument>...: for a program that keeps its runs in FILE.jsonl. Its runs are those of
# one process, also if a process that makes one is killed. Several processes without --distributed are refused.
# Leaves the records of one process in alone.jsonl.
shares_runs() {
  local mpirun=$1 job code=0
  shift
  if [[ -z $mpirun ]]; then
    bad '--distributed: this program was built without MPI; expected a build where CMake finds MPI$' "$@" --distributed
    SLURM_STEP_NUM_TASKS=2 bad '2 processes were started; expected --distributed or one process$' "$@"
    return
  fi
  use_mpi
  ends_by_error 60 -n 2 "$program" "$@" --out copies.html
  [[ $code == 2 ]] || fail "two processes without --distributed: exit code $code: $(cat err.txt)"
  grep -q ': 2 processes were started; expected --distributed or one process$' err.txt ||
    fail "two processes without --distributed: $(cat err.txt)"
  ! compgen -G 'copies*' > /dev/null || fail "two processes without --distributed have begun a file"
  # A launcher that this MPI does not know, as a mpirun of another MPI would be.
  code=0
  SLURM_STEP_NUM_TASKS=2 timeout 60 "$program" "$@" --distributed > out.txt 2> err.txt || code=$?
  [[ $code == 2 ]] && grep -q -- ': --distributed: 2 processes were started, and MPI knows of one; expected ' err.txt ||
    fail "two processes that do not know of each other: exit code $code: $(cat err.txt)"

  "$program" "$@" --out alone.html > /dev/null 2>&1 || fail "exit code $? of one process"
  timeout 120 "$mpirun" -n 3 "$program" "$@" --distributed --out "$folder/shared.html" > out.txt 2> err.txt &
  job=$!
  kill_one "$folder/shared.html" run
  wait "$job" || fail "three processes: exit code $?: $(cat err.txt)"
  [[ $(grep -cE ': died, is made again: signal 9 in process [0-2] on ' out.txt) == 1 ]] ||
    fail "no run was lost and made again: $(cat out.txt)"
  [[ $(losses alone.jsonl) == "$(losses shared.jsonl)" ]] || fail "three processes have other records than one"
  [[ $(tail -n 1 shared.html) == *'</html>' && ! -e shared.runs ]] || fail "no whole page, or files are left"
  timeout 60 "$mpirun" -n 2 "$program" "$@" --distributed --out shared.html > out.txt 2> err.txt ||
    fail "exit code $? where all runs are done: $(cat err.txt)"
  [[ $(losses alone.jsonl) == "$(losses shared.jsonl)" ]] || fail "a run that was done is made again"
}
