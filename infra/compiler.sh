#!/usr/bin/env bash
# Makes sure there is a C++ compiler: the binding of libtorch is C++, and gcc alone does not compile it. On Debian as root
# it is installed; elsewhere the package to install is named.
set -euo pipefail

if command -v c++ >/dev/null; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    printf 'compiler: installing g++\n' >&2
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y g++ >/dev/null
else
    printf 'compiler: there is no C++ compiler: install g++ (Debian: apt-get install g++)\n' >&2
    exit 1
fi
