#!/usr/bin/env bash
# Starts two S3 servers for tests on loopback and prints what a shell needs to find them:
#   eval "$(bash infra/s3-up.sh)"      starts what is not running yet; a second call finds it running
#   bash infra/s3-up.sh down           stops both and removes their state
#
# COA_TEST_RGW is Ceph's gateway from Debian's packages, over the smallest cluster there is: one monitor and one storage
# daemon that keeps objects in memory. It checks signatures. COA_TEST_MOTO is moto, a model of AWS that lets anyone in.
# Standard output has shell lines only. Exit code 75: the servers cannot be installed here.
set -euo pipefail
cd "$(dirname "$0")/.."
. infra/env.sh
mkdir -p "$COA_CACHE"
cache=$(cd "$COA_CACHE" && pwd)
state="$cache/s3"

# One call at a time.
exec 9>"$cache/s3.lock"
flock 9

. infra/s3/moto.sh
. infra/s3/rgw.sh

say() { printf 's3: %s\n' "$*" >&2; }
give_up() { say "$*"; exit 75; }
quietly() { "$@" </dev/null >>"$state/setup.log" 2>&1; }

# launch NAME COMMAND...: a server that outlives this shell and keeps none of its files open, neither the lock nor a
# caller's pipe.
launch() {
    (
        for fd in "/proc/$BASHPID/fd/"*; do
            fd=${fd##*/}
            [ "$fd" -le 2 ] || exec {fd}>&-
        done
        cd / && exec setsid "${@:2}"
    ) </dev/null >>"$state/$1.log" 2>&1 &
    disown $!
    echo $! >"$state/$1.pid"
}

# Whether a pid file still means our process: a number may have gone to another one since.
alive() { grep -qsaF "$cache" "/proc/$(cat "$1")/cmdline"; }

answers() (
    printf 'GET / HTTP/1.0\r\n\r\n' >&0
    read -r -t 5 line && [[ $line == HTTP/*\ 200* ]]
) 2>/dev/null <>"/dev/tcp/127.0.0.1/$1"

# wait_for NAME PORT SECONDS
wait_for() {
    local end=$((SECONDS + $3))
    until answers "$2"; do
        kill -0 "$(cat "$state/$1.pid")" 2>/dev/null || { say "$1 has ended"; return 1; }
        [ "$SECONDS" -lt "$end" ] || { say "$1 does not answer after $3 s"; return 1; }
        sleep 0.05
    done
}

running() {
    [ -e "$state/env" ] || return 1
    local pid
    for pid in "$state"/*.pid; do
        alive "$pid" || return 1
    done
    (. "$state/env" && answers "${COA_TEST_RGW##*:}" && answers "${COA_TEST_MOTO##*:}")
}

# What the servers hold goes with them, so there is nothing to end gently.
stop() {
    local pid
    for pid in "$state"/*.pid; do
        [ ! -e "$pid" ] || ! alive "$pid" || kill -9 "$(cat "$pid")"
    done
}

case "${1:-up}" in
up) ;;
down)
    stop
    rm -rf "$state"
    exit
    ;;
*)
    say "usage: infra/s3-up.sh [up | down]"
    exit 2
    ;;
esac

if ! running; then
    stop
    rm -rf "$state"
    mkdir -p "$state"
    rgw_install
    moto_install

    trap 'stop; tail -n 3 "$state"/*.log >&2; say "not started; the logs are in $state"' EXIT
    read -r rgw_port mon_port moto_port < <(python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(s.getsockname()[1] for s in sockets))')
    access_key=coa-test secret_key=coa-test-secret
    say "starting"
    moto_launch "$moto_port"
    rgw_launch "$rgw_port" "$mon_port" "$access_key" "$secret_key"
    wait_for moto "$moto_port" 60
    {
        echo "export COA_TEST_RGW=http://127.0.0.1:$rgw_port COA_TEST_MOTO=http://127.0.0.1:$moto_port"
        echo "export AWS_ACCESS_KEY_ID=$access_key AWS_SECRET_ACCESS_KEY=$secret_key AWS_REGION=us-east-1"
    } >"$state/env"
    trap - EXIT
fi
cat "$state/env"
