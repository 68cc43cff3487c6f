# Ceph's S3 gateway and the cluster below it. Sourced by infra/s3-up.sh, whose functions and $state it uses.

rgw_install() {
    local package missing=() sudo=()
    for package in radosgw ceph-mon ceph-osd; do # each has a command of its own name
        command -v "$package" >/dev/null || missing+=("$package")
    done
    python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    [ ${#missing[@]} -gt 0 ] || return 0

    command -v apt-get >/dev/null || give_up "needs the Debian packages ${missing[*]}, and there is no apt-get"
    if [ "$(id -u)" != 0 ]; then
        sudo=(sudo -n)
        "${sudo[@]}" true 2>/dev/null || give_up "needs the packages ${missing[*]}, and neither root nor sudo may install them"
    fi
    say "installing ${missing[*]}"
    apt() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@"; }
    quietly apt update || true
    quietly apt install -y --no-install-recommends "${missing[@]}" ||
        give_up "apt-get cannot install ${missing[*]}; see $state/setup.log"
}

# rgw_launch PORT MONITOR_PORT ACCESS_KEY SECRET_KEY: returns once the gateway answers and knows the keys.
rgw_launch() {
    local id osd_id key name
    id=$(cat /proc/sys/kernel/random/uuid)
    osd_id=$(cat /proc/sys/kernel/random/uuid)
    key=$(ceph-authtool --gen-print-key)
    mkdir "$state"/{mon,osd,rgw}

    # The monitor takes everybody's key and rights from this file when it is made, so no one has to be added later.
    for name in mon. osd.0 client.admin; do
        printf '[%s]\n  key = %s\n  caps mon = "allow *"\n  caps osd = "allow *"\n' "$name" "$key"
    done >"$state/keyring"
    chmod 600 "$state/keyring"

    # paxos propose interval: it delays the making of every pool, 1 s by default.
    # tcp_nodelay: without it many answers come 40 ms late.
    # rgw gc: space of deleted objects comes back within minutes, since it is memory.
    # admin socket: none, its path would often be too long. mon data avail: a full disk is no reason to stop.
    cat >"$state/ceph.conf" <<CONF
[global]
fsid = $id
mon host = v2:127.0.0.1:$2
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind ipv6 = false
keyring = $state/keyring
auth allow insecure global id reclaim = false
run dir = $state
log file = $state/\$type.log
admin socket =
mon data = $state/mon
osd data = $state/osd
rgw data = $state/rgw
mon data avail warn = 0
mon data avail crit = 0
mon allow pool size one = true
mon max pg per osd = 2000
paxos propose interval = 0.05
osd objectstore = memstore
memstore device bytes = 4294967296
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
rgw frontends = beast endpoint=127.0.0.1:$1 tcp_nodelay=1
rgw gc obj min wait = 60
rgw gc processor period = 60
CONF
    local conf=(-c "$state/ceph.conf")
    quietly monmaptool --create --fsid "$id" --addv a "[v2:127.0.0.1:$2]" "$state/monmap"
    quietly ceph-mon "${conf[@]}" --mkfs -i a --monmap "$state/monmap" --keyring "$state/keyring"
    launch mon ceph-mon "${conf[@]}" -f -i a
    quietly timeout 60 ceph "${conf[@]}" osd new "$osd_id"
    quietly ceph-osd "${conf[@]}" --mkfs -i 0 --osd-uuid "$osd_id"
    launch osd ceph-osd "${conf[@]}" -f -i 0
    launch rgw radosgw "${conf[@]}" -f -n client.admin
    wait_for rgw "$1" 100
    quietly timeout 60 radosgw-admin "${conf[@]}" user create --uid=test --display-name=test \
        --access-key="$3" --secret-key="$4"
}
