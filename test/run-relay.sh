#!/bin/sh
# Run an origin, a relay of it, and two CoreDNS that know only the relay, on
# 127.0.0.1:1053 and :1054. The origin is killed and comes back, and what both CoreDNS
# answer is shown over the seconds. It runs until Ctrl-C; with ONCE=1 it ends after that.
# Run it in the root of the repository, after `make build`.

name=run-relay
catalog=corefile-examples/quickstart/catalog.yaml
origin_address=127.0.0.1:8008
relay_address=127.0.0.1:8009
service=orders.fed.example
retention=10 # seconds

origin=
relay=
coredns1=
coredns2=

end_all() { end "$coredns1" "$coredns2" "$relay" "$origin"; }

all_live() {
	must_live origin "$origin"
	must_live relay "$relay"
	must_live coredns1 "$coredns1"
	must_live coredns2 "$coredns2"
}

. test/functions.sh

# answer PORT prints what a CoreDNS answers for the service, in short.
answer() {
	bin/lookup -edns -server "127.0.0.1:$1" "$service" A 2>/dev/null | awk '
		$1 == ";" && $3 == "A:" { code = $4 }
		$4 == "A"               { data = " " $5 ", TTL " $2 }
		$1 == ";" && $2 == "EDE" && $3 == 3 { note = ", stale" }
		END { print (code == "" ? "no reply" : code) data note }'
}

# show WHEN prints what both answer.
show() {
	printf '  %-26s %-34s %s\n' "$1" "$(answer 1053)" "$(answer 1054)"
}

# columns prints what the columns of show are.
columns() {
	printf '\n  %-26s %-34s %s\n' '' 127.0.0.1:1053 127.0.0.1:1054
}

# both PATTERN succeeds when both answer like that.
both() { expr "$(answer 1053)" : "$1\$" >/dev/null && expr "$(answer 1054)" : "$1\$" >/dev/null; }

# start_coredns N PORT starts a CoreDNS in the background: its process is in $started.
start_coredns() {
	cat >"$run/Corefile-$1" <<END
fed.example:$2 {
    bind 127.0.0.1
    errors
    federation {
        owner $relay_address
        tls $run/consumer.pem $run/consumer-key.pem $run/ca.pem
        owner_id spiffe://federation.example/owner
        retention ${retention}s
        ttl 5
        negative_ttl 1
    }
}
END
	bin/coredns -conf "$run/Corefile-$1" >"$run/coredns$1.log" 2>&1 &
	started=$!
}

prepare "$origin_address" "$relay_address" 127.0.0.1:1053 127.0.0.1:1054

echo "Starting an origin on $origin_address with $catalog"
serve origin "$origin_address" "$catalog"
origin=$!

echo "Starting a relay on $relay_address, which passes on what the origin publishes; see $run/relay.yaml"
cat >"$run/relay.yaml" <<END
listen: "$relay_address"
identity:
  files: {cert: owner.pem, key: owner-key.pem, ca: ca.pem} # to the origin and to CoreDNS
allow:
  ids: [spiffe://federation.example/consumer]
catalogs:
- relay:
    addresses: ["$origin_address"]
    owner_ids: [spiffe://federation.example/owner]
END
bin/federationctl serve --config "$run/relay.yaml" >"$run/relay.log" 2>&1 &
relay=$!

echo "Starting two CoreDNS on 127.0.0.1:1053 and 127.0.0.1:1054, which know only the relay;"
echo "they keep what is lost for $retention seconds"
start_coredns 1 1053
coredns1=$started
start_coredns 2 1054
coredns2=$started
await "the service at both CoreDNS" both 'NOERROR.*[0-9]'

echo
echo "What both answer for $service:"
columns
show "at rest"
echo
echo "Now the origin is killed. The relay lives, but it does not vouch for what nobody vouches for: both CoreDNS"
echo "count their $retention seconds from the death of the origin, as if they had subscribed to it themselves:"
columns
kill -9 "$origin"
wait "$origin" 2>/dev/null || :
origin=
elapsed=0
while [ "$elapsed" -le $((retention + 2)) ]; do
	show "$elapsed s after its death"
	pause 1
	elapsed=$((elapsed + 1))
done
await "the end of the service at both CoreDNS" both '[A-Z]*[L-N]'
all_live
echo
echo "Now the origin starts again:"
columns
serve origin "$origin_address" "$catalog"
origin=$!
elapsed=0
until both 'NOERROR.*[0-9]'; do
	show "$elapsed s after its start"
	all_live
	pause 1
	elapsed=$((elapsed + 1))
	if [ "$elapsed" -ge 120 ]; then
		echo "run-relay: the service is not back after two minutes; the logs are in $run" >&2
		exit 1
	fi
done
show "$elapsed s after its start"
echo "Nobody had to start anything else anew: the relay kept trying to reach the origin, and both CoreDNS the relay."

if [ "${ONCE:-}" = 1 ]; then
	exit 0
fi
cat <<END

All of it is up. In another terminal:

  bin/lookup -edns -server 127.0.0.1:1054 $service A     (or dig, where it is installed)
  kill -STOP $origin; sleep 60; kill -CONT $origin      (a hang: the relay notices it after 50 s)

Edit $catalog, save, and look it up at both. The logs are in $run. Ctrl-C ends it.
END

forever
