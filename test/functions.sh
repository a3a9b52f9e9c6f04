# shellcheck shell=sh
# What the scripts share that run everything on one machine. A script says in $name what
# it is called, defines end_all and all_live, and sources this file in the root of the
# repository.
set -eu

run=run # where the Corefiles look for certificates; ignored by git
nap=

# end PID... ends processes that the script has started, and waits for them. A process that
# is "" was not started.
end() {
	for pid; do
		kill "$pid" 2>/dev/null || :
	done
	for pid; do
		wait "$pid" 2>/dev/null || :
	done
}

# stop ends whatever the script has started.
stop() {
	status=$?
	trap '' HUP INT TERM
	end "$nap"
	end_all
	exit "$status"
}

# must_live NAME PID ends the script when the process has ended, and prints its log. A
# process that is "" does not run on purpose.
must_live() {
	if [ -z "$2" ] || kill -0 "$2" 2>/dev/null; then
		return
	fi
	echo "$name: $1 has ended; it wrote:" >&2
	sed 's/^/  /' "$run/$1.log" >&2
	exit 1
}

# pause SECONDS waits; a signal interrupts it, as it interrupts only wait.
pause() {
	sleep "$1" &
	nap=$!
	wait "$nap" || :
	nap=
}

# await WHAT COMMAND... waits until the command succeeds.
await() {
	what=$1
	shift
	tries=0
	until "$@"; do
		all_live
		tries=$((tries + 1))
		if [ "$tries" -ge 1200 ]; then
			echo "$name: $what is not so after two minutes; the logs are in $run:" >&2
			tail -n 5 "$run"/*.log | sed 's/^/  /' >&2
			exit 1
		fi
		pause 0.1
	done
}

# prepare ADDRESS... makes the folder, with certificates, and traps signals. All processes
# of the script will listen at the addresses.
prepare() {
	if ! bin/lookup -free "$@"; then
		echo "$name: these addresses are in use; stop what uses them, perhaps another make run" >&2
		exit 1
	fi
	trap stop EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM
	rm -rf "$run"
	mkdir -p "$run"
	echo "Making throwaway certificates in $run/"
	bin/federationctl pki "$run" >"$run/pki.log" 2>&1 || {
		cat "$run/pki.log" >&2
		exit 1
	}
}

# serve NAME ADDRESS CATALOG starts an owner of a catalog file in the background, as $!.
serve() {
	bin/federationctl serve --listen "$2" --catalog "$3" \
		--cert "$run/owner.pem" --key "$run/owner-key.pem" --ca "$run/ca.pem" --allow-any >>"$run/$1.log" 2>&1 &
}

# forever waits for Ctrl-C, or until one of the processes ends by itself.
forever() {
	while :; do
		all_live
		pause 1
	done
}
