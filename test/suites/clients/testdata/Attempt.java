import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;

/** HOST PORT ATTEMPTS: what a JVM makes of a name. */
class Attempt {
	public static void main(String[] args) throws Exception {
		var client = HttpClient.newHttpClient();
		var request = HttpRequest.newBuilder(URI.create("http://" + args[0] + ":" + args[1] + "/")).timeout(Duration.ofSeconds(10)).build();
		for (int left = Integer.parseInt(args[2]); left != 0; left--) {
			try {
				System.out.print(client.send(request, BodyHandlers.ofString()).body());
			} catch (Exception e) {
				System.out.println("! " + e);
			}
			if (left != 1) {
				Thread.sleep(200);
			}
		}
	}
}
