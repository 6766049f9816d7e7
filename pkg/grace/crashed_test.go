package grace

import "testing"

// What nobody says is no good end.
func TestWhichEndsAreCrashes(t *testing.T) {
	for end, want := range map[End]bool{
		EndCrashed: true, EndFailed: true, EndUnknown: true,
		EndGuest: false, EndDestroyed: false, EndKilled: false, EndExited: false, EndMoved: false, EndSaved: false,
	} {
		if end.Crashed() != want {
			t.Errorf("%q: %v", end, !want)
		}
	}
}
