// HOST PORT ATTEMPTS: what Node makes of a name.
const http = require("http");
const [host, port, attempts] = process.argv.slice(2);

function attempt(left) {
	const end = (line) => {
		process.stdout.write(line.trim() + "\n");
		if (left !== 1) setTimeout(attempt, 200, left - 1);
		else http.globalAgent.destroy();
	};
	http.get({ host, port, timeout: 10000 }, (response) => {
		let body = "";
		response.on("data", (data) => (body += data));
		response.on("end", () => end(body));
	}).on("error", (error) => end("! " + error.message)).on("timeout", function () { this.destroy(new Error("timeout")); });
}

attempt(Number(attempts));
