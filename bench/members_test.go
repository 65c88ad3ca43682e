package bench

func runMembers(dir, arg string) error { return nil }
