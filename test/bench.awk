# Sets the medians of benchmark results side by side: what federation needs, and
# how it compares with the plugins of CoreDNS that hold the same records.
#
#	awk -f test/bench.awk bench.txt

/^(--- )?FAIL/ { failed = 1 }

/^Benchmark/ && NF > 3 {
	name = $1
	sub(/^Benchmark/, "", name)
	sub(/-[0-9]+$/, "", name)
	plugin = ""
	if (match(name, /\/plugin=[a-z]+$/)) {
		plugin = substr(name, RSTART + 8)
		name = substr(name, 1, RSTART - 1)
	}
	for (i = 3; i < NF; i += 2) {
		key = name SUBSEP $(i + 1)
		if (!(key in known)) {
			known[key] = 1
			order[++rows] = key
		}
		values[key, plugin, ++count[key, plugin]] = $i
	}
}

END {
	printf "%-62s %14s %14s %14s %10s %10s\n", "benchmark and unit", "federation", "hosts", "file", "/hosts", "/file"
	for (i = 1; i <= rows; i++) {
		key = order[i]
		split(key, part, SUBSEP)
		own = median(key, "federation")
		hosts = median(key, "hosts")
		file = median(key, "file")
		if (own == "")
			own = median(key, "")
		printf "%-62s %14s %14s %14s %10s %10s\n", part[1] " " part[2], own, hosts, file, ratio(own, hosts), ratio(own, file)
	}
	if (failed || rows == 0)
		exit 1
}

function median(key, plugin, n, i, j, swap, sorted) {
	n = count[key, plugin]
	if (n == 0)
		return ""
	for (i = 1; i <= n; i++) {
		sorted[i] = values[key, plugin, i] + 0
		for (j = i; j > 1 && sorted[j] < sorted[j - 1]; j--) {
			swap = sorted[j]
			sorted[j] = sorted[j - 1]
			sorted[j - 1] = swap
		}
	}
	return (sorted[int((n + 1) / 2)] + sorted[int((n + 2) / 2)]) / 2
}

function ratio(own, other) {
	return own == "" || other == "" || other == 0 ? "" : sprintf("%.2f", own / other)
}
