# Where the build keeps what does not belong in the checkout. Source it, or let `make` do so:
#   . infra/env.sh
# COA_CACHE may point anywhere; clones on one machine share it, so a second clone starts warm.
export COA_CACHE="${COA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/coa}"
export LIBTORCH="${LIBTORCH:-$COA_CACHE/libtorch-2.11.0}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$COA_CACHE/target}"
export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"
