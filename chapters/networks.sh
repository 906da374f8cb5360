#!/bin/sh
# Runs a program on P ranks that are joined by a network of a given rate, on this machine alone:
#
#   sh chapters/networks.sh 100mbit 3 ./ch12 --forecast        also 10mbit, 1gbit, ...
#
# Each rank is in a network namespace of its own. A cable leads from there to a switch (veth, and a
# bridge), and at both of its ends a token bucket lets no more pass than the rate (tc tbf), in each
# direction. Messages go by TCP; memory in common is not used, though there is. Delays stay those
# of this machine. That needs root, ip and tc (Debian: iproute2), and MPICH's mpiexec. What it has
# made it takes away at its end; its exit code is mpiexec's, or 77 where it cannot be done.
[ $# -ge 3 ] || { echo "usage: sh chapters/networks.sh RATE RANKS PROGRAM ..." >&2; exit 2; }
rate=$1 ranks=$2 name=net$$
shift 2
PATH=$PATH:/usr/sbin:/sbin
MPIEXEC=${MPIEXEC:-$(command -v mpiexec.mpich || echo mpiexec)}

skip() { echo "no network of $rate here: $1" >&2; exit 77; }
[ "$(id -u)" -eq 0 ] || skip "it takes root to make one"
for tool in ip tc; do command -v $tool >/dev/null || skip "there is no $tool (Debian: iproute2)"; done
"$MPIEXEC" --version 2>/dev/null | grep -q HYDRA || skip "$MPIEXEC is not MPICH's"

end() {
    for r in $(seq 0 $((ranks - 1))); do ip netns del $name-$r 2>/dev/null; done
    ip link del $name 2>/dev/null
}
trap end EXIT
trap 'exit 130' INT TERM

# From 1gbit on the kernel cannot refill so small a bucket as often as it should: 78 KB then pass at
# about 400 Mbit/s, measured on two cores. What a rate comes to is what --forecast fits.
#
# A bucket that holds little, as what is in it passes at once: a packet and a bit, or two. The queue
# behind it is long enough for all that ranks here send at a time, so that nothing is lost.
case $rate in *gbit) burst=4000 ;; *) burst=2000 ;; esac
limit="tbf rate $rate burst $burst limit 8000000"
{
    ip link add $name type bridge && ip link set $name up
    for r in $(seq 0 $((ranks - 1))); do
        ip netns add $name-$r &&
            ip link add $name.$r type veth peer name eth0 netns $name-$r &&
            ip link set $name.$r master $name up &&
            ip -n $name-$r addr add 10.77.$((r / 250)).$((r % 250 + 1))/16 dev eth0 &&
            ip -n $name-$r link set lo up && ip -n $name-$r link set eth0 up &&
            tc qdisc add dev $name.$r root $limit &&
            tc -n $name-$r qdisc add dev eth0 root $limit &&
            ip netns exec $name-$r sysctl -q net.ipv4.tcp_congestion_control=reno ||
            skip "network namespaces, veth and tbf are not all to be had"
    done
}

# Every rank is a host of its own to mpiexec, which starts it here and lets it enter its namespace.
# UCX, on which MPICH may stand, is told to send by TCP, and at once: with its rendezvous for long
# messages two ranks that exchange vectors take turns, and need twice the time.
export UCX_TLS=tcp,self UCX_NET_DEVICES=eth0 UCX_RNDV_THRESH=inf
"$MPIEXEC" -launcher fork -hosts "$(seq -s, -f host%g "$ranks")" -n "$ranks" \
    sh -c 'exec ip netns exec "$0-$PMI_RANK" "$@"' $name "$@"
