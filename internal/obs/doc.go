// Package obs is what all programs of cmd share: the command line around a
// command, settings from flags, environment and file, logs, metrics, traces and
// the HTTP port.
//
// A program is a cobra command made by [Root], with its flags bound to the
// fields of a Config, and a main of one line:
//
//	func main() { os.Exit(obs.Main(command(), os.Args[1:], os.Stdout, os.Stderr)) }
//
//	func command() *cobra.Command {
//		cfg, o := nameserver.Default(), obs.DefaultConfig(":9877")
//		cmd := obs.Root("nameserver", "Map topics to the brokers that host them")
//		cmd.Args = cobra.NoArgs
//		cmd.Flags().Var(obs.Listen(&cfg.Listen), "listen", "address to listen on")
//		o.Bind(cmd.Flags())
//		cmd.RunE = func(cmd *cobra.Command, _ []string) error {
//			tel, err := obs.New(cmd.Context(), o, cmd.ErrOrStderr())
//			if err != nil {
//				return err
//			}
//			if err := tel.Listen(cmd.Context()); err != nil {
//				return err
//			}
//			srv, err := nameserver.New(cfg, nameserver.WithLogger(tel.Log), nameserver.WithRegisterer(tel.Registry),
//				nameserver.WithServerOptions(tel.ServerOptions()...))
//			if err != nil {
//				return errors.Join(err, tel.Close())
//			}
//			return tel.Run(cmd.Context(), srv.Run)
//		}
//		return cmd
//	}
//
// [Main] ends the command's context at SIGINT or SIGTERM (a second one kills),
// fills in settings before any RunE runs (see [Load]) and turns the outcome into
// an exit code: 0 done, 1 failed, 2 used wrongly. Whatever cobra refuses before
// RunE, and every [UsageError], is wrong use. Flags made with [Int], [Duration],
// [Choice] and the like check their values where they are given, before anything
// is bound or touched, and say in plain words what they take.
package obs
