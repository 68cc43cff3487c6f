# Where the build keeps what does not belong in the checkout. Source it:
#   . infra/env.sh
# Clones on one machine share COA_CACHE, so a second one starts warm. Each variable may be set beforehand.
export COA_CACHE="${COA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/coa}"
export LIBTORCH="${LIBTORCH:-$COA_CACHE/libtorch-2.11.0}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$COA_CACHE/target}"
export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"
export COA="${COA:-$CARGO_TARGET_DIR/debug/coa}"
