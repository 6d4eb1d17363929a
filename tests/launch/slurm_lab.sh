#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# slurm_lab.sh up|down FOLDER: a Slurm of three fake nodes on this machine (n1, n2, n3, 4 CPUs
# each) whose daemons trust every user, on free ports. FOLDER/slurm.conf is its configuration.
# Exit 77: it cannot run here.
set -u
folder=$2
case $1 in
up)
    [ "$(id -u)" = 0 ] || { echo "a Slurm of our own needs root"; exit 77; }
    for program in slurmctld slurmd srun salloc sinfo; do
        command -v $program >/dev/null ||
            { echo "there is no $program (slurmctld, slurmd, slurm-client)"; exit 77; }
    done
    mkdir -p "$folder/state" || exit 77
    # shellcheck disable=SC2046 # four words
    set -- $(python3 -c 'import socket
s = [socket.socket() for _ in range(4)]
for one in s: one.bind(("127.0.0.1", 0))
print(*[one.getsockname()[1] for one in s])')
    cat >"$folder/slurm.conf" <<CONF
ClusterName=lab
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$1
AuthType=auth/none
CredType=cred/none
SlurmUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName=n1 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$2 CPUs=4
NodeName=n2 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$3 CPUs=4
NodeName=n3 NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=$4 CPUs=4
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
    export SLURM_CONF="$folder/slurm.conf"
    slurmctld >/dev/null 2>&1 || { cat "$folder/slurmctld.log"; exit 77; }
    for node in n1 n2 n3; do
        slurmd -N $node >/dev/null 2>&1 || { cat "$folder/slurmd.$node.log"; exit 77; }
    done
    i=0
    until [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 3 ]; do
        i=$((i + 1))
        [ $i -lt 300 ] || { sinfo; tail -n 5 "$folder"/*.log; exit 77; }
        sleep 0.1
    done
    ;;
down)
    export SLURM_CONF="$folder/slurm.conf"
    i=0
    while [ -n "$(squeue -h 2>/dev/null)" ] && [ $i -lt 100 ]; do
        scancel -f -u "$(id -un)" 2>/dev/null
        i=$((i + 1))
        sleep 0.1
    done
    for pid in "$folder"/*.pid; do
        [ -s "$pid" ] && kill "$(cat "$pid")" 2>/dev/null
    done
    sleep 0.5
    rm -rf "$folder"
    ;;
esac
exit 0
