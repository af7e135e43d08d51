import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/** Sections under Curator's mutex. */
class Curator {
    static void run(String script) throws Exception {
        var process = new ProcessBuilder("sh", script, "theirs").inheritIO().start();
        if (process.waitFor() != 0) {
            throw new IllegalStateException(script);
        }
    }

    public static void main(String[] arguments) throws Exception {
        var sections = Integer.parseInt(arguments[1]);
        try (var client = CuratorFrameworkFactory.newClient(arguments[0], new RetryOneTime(100))) {
            client.start();
            var mutex = new InterProcessMutex(client, "/onelock/nightly");
            for (var section = 0; section < sections; section++) {
                run("turn.sh");
                mutex.acquire();
                try {
                    run("section.sh");
                } finally {
                    mutex.release();
                }
            }
        }
    }
}
