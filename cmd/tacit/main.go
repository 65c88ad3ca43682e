// Command tacit is the one tool for people: it shows what Tacit does (demo),
// runs a cluster for trying things (dev), looks at topics, brokers and groups and
// changes them, says why queues are where they are (explain), and sends and
// reads messages.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/tacitmq/tacit/internal/obs"
)

func main() { os.Exit(run()) }

func run() int { return obs.Main(command(), os.Args[1:], os.Stdout, os.Stderr) }

// command is the whole tree of commands.
func command() *cobra.Command {
	g := defaults()
	root := obs.Root("tacit", "Consumer groups that share queues without a coordinator")
	root.Long = root.Short + `.

Start with "tacit demo", which shows it in a few seconds, or with "tacit dev",
which runs a name server and a broker to play with.

Every flag can be given as an environment variable, --nameservers as
TACIT_NAMESERVERS, or in the YAML file that --config names; flags come before
variables and variables before the file.`
	root.Annotations = map[string]string{obs.Completes: "topics, groups and brokers"}
	g.bind(root.PersistentFlags())
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Run:"},
		&cobra.Group{ID: "look", Title: "Look and change:"},
		&cobra.Group{ID: "messages", Title: "Messages:"},
	)
	root.AddCommand(demoCommand(), memberCommand(), devCommand(), compareCommand())
	root.AddCommand(g.topicCommand(), g.brokerCommand(), g.groupCommand(), g.explainCommand())
	root.AddCommand(g.produceCommand(), g.consumeCommand())
	return root
}
