// Package wake wakes goroutines that wait for work. Each waits for a channel with room for one value, and looks
// for everything that there is to do when it gets the value: so many calls of [Up] are one, and none waits.
package wake

// Up puts a value into a channel with room for one, unless there is a value already.
func Up(waiting chan<- struct{}) {
	select {
	case waiting <- struct{}{}:
	default:
	}
}
