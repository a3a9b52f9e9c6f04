// HOST PORT ATTEMPTS: what gRPC for Node makes of a name. The call is a health check, whose
// empty request needs no code for messages. OPTIONS in the environment are those of the channel.
const grpc = require("@grpc/grpc-js");
const [host, port, attempts] = process.argv.slice(2);
const client = new grpc.Client(`dns:///${host}:${port}`, grpc.credentials.createInsecure(), JSON.parse(process.env.OPTIONS || "{}"));
const bytes = (message) => message;

function attempt(left) {
	const call = client.makeUnaryRequest("/grpc.health.v1.Health/Check", bytes, bytes, Buffer.alloc(0), { deadline: Date.now() + 10000 }, (error) => {
		process.stdout.write((error ? "! " + error.message.replace(/\n/g, " ") : call.getPeer().replace(/:\d+$/, "")) + "\n");
		if (left !== 1) setTimeout(attempt, 200, left - 1);
		else client.close();
	});
}

attempt(Number(attempts));
