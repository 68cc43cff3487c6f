#!/usr/bin/env bash
# Gets what some tests use besides: a PostgreSQL server and faketime, from Debian's packages. Tests that miss theirs are
# skipped, with a message.
set -euo pipefail

missing=()
command -v faketime >/dev/null || missing+=(faketime)
command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing+=(postgresql)
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null && sudo -n true 2>/dev/null && as_root=(sudo -n) || as_root=(false)
fi
if command -v apt-get >/dev/null && "${as_root[@]}" true; then
    echo "test tools: installing ${missing[*]}" >&2
    # A server of its own is started by the tests; none is to run beside it.
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
        >/dev/null 2>&1 && exit 0
    "${as_root[@]}" apt-get update -qq >/dev/null 2>&1 || true
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
        >/dev/null 2>&1 && exit 0
fi
echo "test tools: ${missing[*]} cannot be installed here; their tests are skipped" >&2
