package eviction

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// hookScript asks the node's agent whether a launcher's shutdown is held, and waits while it is.
const hookScript = `# preStop of a launcher: kubelet runs it before SIGTERM, and again where kubelet restarts meanwhile.
# $1 is how many seconds it waits at most while the shutdown is held, $2 the launcher directory.
# It needs sh, mv and sleep. It counts tenths of a second, and ends with 0 whatever happens.
nap() { # SECONDS TENTHS; a sleep without fractions sleeps for a second
	if sleep "$1" 2>/dev/null; then n=$((n + $2)); else sleep 1; n=$((n + 10)); fi
}
cd "$2" 2>/dev/null || exit 0
if ! [ -e shutdown ]; then
	# Another container of the pod may have moved the file meanwhile.
	{ echo > .shutdown && mv -f .shutdown shutdown || [ -e shutdown ]; } 2>/dev/null || exit 0
fi
n=0
until [ -e answered ]; do
	if [ "$n" -ge 20 ]; then # no agent: one that comes later must not believe that this waits
		{ echo > answered; } 2>/dev/null
		break
	fi
	nap 0.1 1
done
n=0
if [ -f waited ]; then read -r n < waited; fi
case $n in '' | 0?* | *[!0-9]* | ?????????*) n=0 ;; esac
while [ -e held ] && [ "$n" -lt "$(($1 * 10))" ]; do
	nap 0.5 5
	echo "$n" > waited
done 2>/dev/null
exit 0
`

// launcherDir is where a launcher finds its launcher directory.
const launcherDir = "/var/run/vmgrace/launcher"

// hook returns the preStop hook of a launcher whose shutdown is held for at most that many
// seconds.
func hook(allowance string) *corev1.LifecycleHandler {
	return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{
		Command: []string{"/bin/sh", "-c", hookScript, "vmgrace", allowance, launcherDir},
	}}
}

// isHook reports whether a preStop hook is one that hook has made, for any allowance.
func isHook(h *corev1.LifecycleHandler) bool {
	const script = 2
	return h.Exec != nil && len(h.Exec.Command) > script && slices.Equal(h.Exec.Command[:script+1], []string{"/bin/sh", "-c", hookScript})
}
