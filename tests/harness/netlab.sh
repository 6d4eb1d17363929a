#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# netlab.sh: several hosts on one machine, each a network namespace with its own name, addresses and
# hosts file.
#
#   LS_NETLAB=$(netlab.sh up N [OPTION...])   creates nodes 0..N-1 and prints the lab's name
#   netlab.sh exec I CMD...                   runs a command on node I of the lab $LS_NETLAB
#   netlab.sh unplug I                        takes the cables of node I's networks off the switches
#   netlab.sh plug I                          puts them back; the node's interfaces notice neither
#   netlab.sh down [LAB]                      kills the lab's processes and removes it
#   netlab.sh sweep                           removes labs of dead owners or not used for an hour
#
# Node I is nodeI, and has
#   eth0     10.77.0.(10+I)/24 and fd77::(10+I)/64, fast
#   eth1     10.78.0.(10+I)/24, 200 Mbit/s
#   docker0  172.17.0.1/16, a bridge with the same address on all nodes
#   /etc/hosts with its own name as 127.0.1.1, as Debian writes it, and the others' at eth0
#
# Options of `up`
#   --owner PID    removes the lab when that process has ended, however it ended
#   --mixed        on the last node the fast interface is called ens3
#   --slow-first   eth0 is the slow network and eth1 the fast one; the networks keep their addresses
#   --dead         eth2 with 10.79.0.(10+I)/24, where no packet arrives
#   --black-hole   eth3 with 10.80.0.(10+I)/24, where packets above 1500 bytes are lost although the
#                  interfaces have an MTU of 9000
#
# Everything is inside the lab's own namespaces, which have random names, so labs may run side by
# side. Where this is impossible (rights, kernel, programs) it prints the reason and exits with 77.
set -eu
umask 022

self=$(readlink -f "$0")
records=/run/lockstep-netlab
stale_minutes=60

say() { echo "netlab: $*" >&2; }
fail() { say "$*"; exit 1; }
skip() { say "skipped: $*"; exit 77; }

nodes_of() { ip netns list 2>/dev/null | sed -n "s/^\($1-[0-9a-z]*\).*/\1/p"; }

# The start time too: process numbers come again.
start_of() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20; }

down() {
    for node in $(nodes_of "$1"); do
        ip netns pids "$node" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
        ip netns del "$node" 2>/dev/null || true
        rm -rf "/etc/netns/$node"
    done
    rm -rf "${records:?}/$1"
}

is_orphan() {
    [ -s "$records/$1/owner" ] || return 1
    read -r pid start <"$records/$1/owner" || return 1
    [ "$(start_of "$pid")" != "$start" ]
}

sweep() {
    for record in "$records"/lslab*; do
        [ -d "$record" ] || continue
        lab=${record##*/}
        if is_orphan "$lab" || [ -n "$(find "$record" -maxdepth 0 -mmin +$stale_minutes)" ]; then
            down "$lab"
        fi
    done
}

# Tries the needs of every lab once, in a separate namespace; the error is the reason to skip.
require() {
    [ "$(id -u)" = 0 ] || skip "network namespaces need root"
    for program in ip tc unshare; do
        command -v $program >/dev/null || skip "$program is not installed"
    done
    lab_try=lslabtry-$$
    error=$(ip netns add $lab_try 2>&1 && ip -n $lab_try link add try0 type bridge 2>&1 &&
        ip -n $lab_try link add try1 type veth peer name try2 2>&1 &&
        tc -n $lab_try qdisc add dev try1 root tbf rate 200mbit burst 64kb latency 50ms 2>&1 &&
        ip netns exec $lab_try unshare --uts true 2>&1) || true
    ip netns del $lab_try 2>/dev/null || true
    [ -z "$error" ] || skip "$error"
}

# cable I NAME PORT SWITCH: an interface of node I; its other end is a port of SWITCH ("": of none)
cable() {
    ip -n "$lab-sw" link add "$3" type veth peer name "$2" netns "$lab-$1"
    [ -z "$4" ] || ip -n "$lab-sw" link set "$3" master "$4"
    ip -n "$lab-sw" link set "$3" up
    ip -n "$lab-$1" link set "$2" up
}

address() { ip -n "$lab-$1" addr add "$2" dev "$3"; }

hosts_file() {
    mkdir -p "/etc/netns/$lab-$1"
    {
        echo "127.0.0.1 localhost"
        echo "127.0.1.1 node$1"
        other=0
        while [ $other -lt "$n" ]; do
            [ $other = "$1" ] || echo "10.77.0.$((10 + other)) node$other"
            other=$((other + 1))
        done
    } >"/etc/netns/$lab-$1/hosts"
}

# The narrow link is not the first hop, where the sender's kernel would know its MTU. Segmentation
# offload would carry large packets past it as if they were small ones.
black_hole() {
    ip -n "$lab-sw" link add "wide$1" type bridge
    ip -n "$lab-sw" link set "wide$1" up
    cable "$1" eth3 "eth3p$1" "wide$1"
    ip -n "$lab-sw" link set "eth3p$1" mtu 9000
    ip -n "$lab-sw" link add "narrow$1" mtu 1500 type veth peer name "hole$1" mtu 1500
    ip -n "$lab-sw" link set "narrow$1" master "wide$1" up
    ip -n "$lab-sw" link set "hole$1" master hole up
    ip -n "$lab-$1" link set eth3 mtu 9000 gso_max_segs 1
    address "$1" "10.80.0.$((10 + $1))/24" eth3
}

make_node() {
    fast=eth0
    slow=eth1
    [ $slow_first = 0 ] || { fast=eth1; slow=eth0; }
    [ $mixed = 0 ] || [ "$1" != $((n - 1)) ] || fast=ens3
    ip -n "$lab-$1" link set lo up
    cable "$1" $fast "fast$1" fast
    address "$1" "10.77.0.$((10 + $1))/24" $fast
    # fails with a kernel without IPv6
    ip -n "$lab-$1" addr add "fd77::$((10 + $1))/64" dev $fast nodad 2>/dev/null || true
    cable "$1" $slow "slow$1" slow
    address "$1" "10.78.0.$((10 + $1))/24" $slow
    for end in "$lab-$1 $slow" "$lab-sw slow$1"; do
        # shellcheck disable=SC2086 # two words
        set -- "$1" $end
        tc -n "$2" qdisc add dev "$3" root tbf rate 200mbit burst 64kb latency 50ms
    done
    ip -n "$lab-$1" link add docker0 type bridge
    address "$1" 172.17.0.1/16 docker0
    ip -n "$lab-$1" link set docker0 up
    [ $dead = 0 ] || { cable "$1" eth2 "dead$1" ""; address "$1" "10.79.0.$((10 + $1))/24" eth2; }
    [ $hole = 0 ] || black_hole "$1"
    hosts_file "$1"
}

make_lab() {
    ip netns add "$lab-sw"
    for switch in fast slow hole; do
        ip -n "$lab-sw" link add $switch type bridge
        ip -n "$lab-sw" link set $switch up
    done
    i=0
    while [ $i -lt "$n" ]; do
        ip netns add "$lab-$i"
        make_node $i
        i=$((i + 1))
    done
}

# Removes the lab soon after its owner's end; if this process is killed too, the next sweep does it.
watch_owner() {
    # shellcheck disable=SC2016 # the inner shell expands it
    setsid sh -c 'tail --pid="$1" -f /dev/null; exec "$2" down "$3"' \
        sh "$owner" "$self" "$lab" </dev/null >/dev/null 2>&1 &
}

up() {
    n=$1
    shift
    mixed=0 slow_first=0 dead=0 hole=0 owner=
    while [ $# -gt 0 ]; do
        case $1 in
        --owner) owner=${2:?}; shift ;;
        --mixed) mixed=1 ;;
        --slow-first) slow_first=1 ;;
        --dead) dead=1 ;;
        --black-hole) hole=1 ;;
        *) fail "unknown option $1" ;;
        esac
        shift
    done
    if [ "$n" -lt 1 ] || [ "$n" -gt 200 ]; then fail "$n nodes, expected 1 to 200"; fi
    require
    sweep
    lab=lslab$(od -An -N4 -tx4 /dev/urandom | tr -d ' ')
    mkdir -p "$records/$lab"
    [ -z "$owner" ] || echo "$owner $(start_of "$owner")" >"$records/$lab/owner"
    trap 'down "$lab"' EXIT
    trap 'exit 1' INT TERM HUP
    make_lab
    [ -z "$owner" ] || watch_owner
    trap - EXIT
    echo "$lab"
}

exec_on() {
    node=$1
    shift
    [ -n "${LS_NETLAB:-}" ] || fail "LS_NETLAB is not set to what 'up' printed"
    touch -c "$records/$LS_NETLAB" # it is in use
    # shellcheck disable=SC2016 # the inner shell expands it
    exec ip netns exec "$LS_NETLAB-$node" \
        unshare --uts sh -c 'hostname "$1" && shift && exec "$@"' sh "node$node" "$@"
}

unplug() { for net in fast slow; do ip -n "${LS_NETLAB:?}-sw" link set "$net$1" nomaster; done; }
plug() { for net in fast slow; do ip -n "${LS_NETLAB:?}-sw" link set "$net$1" master $net; done; }

case ${1:-} in
up) shift; up "$@" ;;
exec) shift; exec_on "$@" ;;
unplug | plug) "$1" "${2:?}" ;;
down) down "${2:-${LS_NETLAB:?}}" ;;
sweep) sweep ;;
*) sed -n '3,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
