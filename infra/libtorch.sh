#!/usr/bin/env bash
# Lays out a CPU libtorch 2.11.0 under $LIBTORCH from three PyPI wheels (about 545 MB, no pip install).
#
# The wheel's `libtorch.so` is only a list of needed libraries, CUDA ones among them. Here an empty stub of
# the same name takes its place; on a GPU machine LD_LIBRARY_PATH puts the real one in front of it, and the
# same binary finds CUDA. There must be no libtorch_cuda.so beside it, or torch-sys would link it.
set -euo pipefail
cd "$(dirname "$0")/.."
. infra/env.sh

torch=2.11.0
marker="$LIBTORCH/complete"
if [ -e "$marker" ]; then
    exit 0
fi

say() { printf 'libtorch: %s\n' "$*" >&2; }
need() { command -v "$1" >/dev/null || { say "\`$1\` is missing: $2"; exit 1; }; }
need python3 "install python3 and python3-pip"
need gcc "install gcc"
python3 -m pip --version >/dev/null 2>&1 || { say "pip is missing: install python3-pip"; exit 1; }

mkdir -p "$(dirname "$LIBTORCH")"
work=$(mktemp -d "$LIBTORCH.XXXXXX")
trap 'rm -rf "$work"' EXIT
say "fetching the wheels of torch $torch (545 MB)"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$work/wheels" \
    --python-version 3.11 --implementation cp --abi cp311 --platform manylinux_2_28_x86_64 "torch==$torch"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$work/wheels" \
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85
say "unpacking"
python3 - "$work" <<'PY'
import glob, os, shutil, sys, zipfile
work = sys.argv[1]
wanted = {"libtorch_cpu.so", "libc10.so", "libgomp.so.1", "libcudart.so.13", "libcupti.so.13"}
found = set()
os.makedirs(f"{work}/tree/lib")
for wheel in glob.glob(f"{work}/wheels/*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            base = os.path.basename(name)
            if base in wanted:
                target = f"{work}/tree/lib/{base}"
                found.add(base)
            elif name.startswith("torch/include/") and base:
                target = f"{work}/tree/{name.removeprefix('torch/')}"
            else:
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with archive.open(name) as source, open(target, "wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
if found != wanted:
    sys.exit(f"libtorch: the wheels lack {sorted(wanted - found)}")
PY
: > "$work/empty.c"
gcc -shared -o "$work/tree/lib/libtorch.so" -Wl,-soname,libtorch.so -x c "$work/empty.c"
echo "$torch" > "$work/tree/build-version"
rm -rf "$LIBTORCH"
mv "$work/tree" "$LIBTORCH"
touch "$marker"
say "ready in $LIBTORCH"
