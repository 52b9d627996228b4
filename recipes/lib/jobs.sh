# Run commands so that a signal ends them. Sourced by common.sh.
#
# SIGINT (Ctrl-C), SIGTERM and SIGUSR1 end the running command with all its child processes; the recipe exits with 75
# (EX_TEMPFAIL), and the same command resumes it. `train` instead ends a training after its next update.
# Bash runs a trap only when the command in the foreground has ended. Commands therefore run in the background, where
# they also ignore Ctrl-C, and the shell waits for them.

stopped() {
  trap '' INT TERM USR1
  set +e
  end_jobs
  echo "${0##*/}: stopped; run the same command again to resume" >&7
  exit 75
}
answering=
exec 7>&2 # a trap runs with the redirections of the command that it interrupts
trap stopped INT TERM USR1

# attended COMMAND...: run a command that a signal ends.
attended() {
  "$@" 7>&- &
  wait $!
}

# answer NAMES COMMAND...: read the line that a command prints into the variables NAMES.
answer() {
  local names=$1 complete=1
  shift
  exec 9< <(trap '' INT && exec "$@" 7>&-)
  answering=$!
  # shellcheck disable=SC2229 # the names are in the variable
  read -r $names <&9 || complete=0
  answering=
  exec 9<&-
  ((complete)) || exit 2 # the command has printed the reason
}

# descendants PID: the child processes of a process, and theirs.
descendants() {
  local child
  for child in $(cat /proc/"$1"/task/*/children 2>/dev/null || pgrep -P "$1"); do
    echo "$child"
    descendants "$child"
  done
}

# end_jobs: end the running command and its descendants; kill what still runs after three seconds.
end_jobs() {
  local pid pids
  pids=$(for pid in $(jobs -p) $answering; do
    echo "$pid"
    descendants "$pid"
  done)
  [[ -n $pids ]] || return 0
  # shellcheck disable=SC2086 # several numbers
  kill -TERM $pids 2>/dev/null || true
  for _ in {1..30}; do
    # shellcheck disable=SC2086
    kill -0 $pids 2>/dev/null || return 0
    sleep 0.1
  done
  # shellcheck disable=SC2086
  kill -KILL $pids 2>/dev/null || true
}

# ended PID: wait until a child process has ended, although signals interrupt a wait, and return its exit code.
ended() {
  while kill -0 "$1" 2>/dev/null; do wait "$1" || true; done
  wait "$1"
}

# part_of_recipe COMMAND...: run another recipe. It receives the signals and prints the messages; this recipe exits
# with its exit code.
part_of_recipe() {
  local status part
  "$@" &
  part=$!
  trap 'kill -TERM "$part"' INT TERM USR1
  ended "$part" && status=0 || status=$?
  trap stopped INT TERM USR1
  ((status == 0)) || exit "$status"
}
