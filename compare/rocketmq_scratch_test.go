package compare
import ("testing";"time";"fmt")
func TestScratch(t *testing.T) {
	for _, sc := range Scenarios() {
		b := time.Now()
		run, err := simulate(modelOf(t, "rocketmq"), sc, Size{16, 128, 2}, OwnTimers, Spread, Network{}, 1)
		fmt.Println(sc.Name, err, time.Since(b))
		for _, e := range run.Events { fmt.Printf("   %+v\n", e) }
	}
}
