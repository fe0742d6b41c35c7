# SPDX-License-Identifier: MIT
# For tests of programs, to be sourced with the program's path as argument.
# It sets `program`, changes to a folder that is removed at the end, and counts failures.
# shellcheck shell=bash
program=$(realpath -- "$1")
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT
cd -- "$folder"
failures=0

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
