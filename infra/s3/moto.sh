# moto, the model of AWS. Sourced by infra/s3-up.sh, whose functions and $cache and $state it uses.

moto_venv="$cache/moto-5.2.5"

# The extra `server` brings what all the other services need; S3 alone takes Flask and less than half the space.
moto_install() {
    [ ! -e "$moto_venv/complete" ] || return 0
    say "installing moto"
    rm -rf "$moto_venv"
    quietly python3 -m venv "$moto_venv" &&
        quietly "$moto_venv/bin/pip" install --quiet --disable-pip-version-check \
            "moto[s3]==5.2.5" flask==3.1.3 flask-cors==6.0.5 werkzeug==3.1.9 ||
        give_up "moto cannot be installed with pip; see $state/setup.log"
    touch "$moto_venv/complete"
}

# moto_launch PORT
moto_launch() { launch moto "$moto_venv/bin/python" -m moto.server -H 127.0.0.1 -p "$1"; }
