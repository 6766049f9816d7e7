#define _GNU_SOURCE
#include "thread.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 4096 };
enum state { UNUSED, ARMED, SENT };

struct slot {
	enum state state;
	int pidfd;
	int64_t at;
	struct deadline_sent sent;
};

// The one table and its thread. They are static, so that no pointer can dangle.
static struct {
	atomic_flag running;
	pthread_t thread;
	pthread_barrier_t started; // the thread has its priority
	pthread_mutex_t lock; // inherits the thread's priority; never held during a wait
	int timer, eventfd;
	int ending;
	int64_t next; // what the timer is set to
	int used;     // slots from here on were never in use
	struct slot slots[SLOTS];
} d = {.running = ATOMIC_FLAG_INIT};

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// set sets the timer. The caller holds the lock.
static void set(int64_t at) {
	struct itimerspec spec = {0}; // none
	d.next = at;
	if (at != INT64_MAX) {
		if (at < 1) at = 1;
		spec.it_value.tv_sec = at / 1000000000LL;
		spec.it_value.tv_nsec = at % 1000000000LL;
	}
	timerfd_settime(d.timer, TFD_TIMER_ABSTIME, &spec, NULL); // cannot fail with these arguments
}

// terminate first checks for the end: a zombie takes a signal without an error
// (pidfd_open(2)).
static struct deadline_sent terminate(int pidfd) {
	struct pollfd gone = {.fd = pidfd, .events = POLLIN};
	struct deadline_sent s = {.error = ESRCH};
	if (poll(&gone, 1, 0) != 1)
		s.error = syscall(SYS_pidfd_send_signal, pidfd, SIGTERM, NULL, 0) == 0 ? 0 : errno;
	s.at = now();
	return s;
}

// fire sends all due signals, and returns their number; -1 at the end.
static int fire(void) {
	int64_t at = now(), next = INT64_MAX;
	int sent = 0;
	pthread_mutex_lock(&d.lock);
	for (int i = 0; i < d.used && !d.ending; i++) {
		struct slot *s = &d.slots[i];
		if (s->state != ARMED) continue;
		if (s->at <= at) {
			s->sent = terminate(s->pidfd);
			s->state = SENT;
			sent++;
		} else if (s->at < next) {
			next = s->at;
		}
	}
	set(next);
	if (d.ending) sent = -1;
	pthread_mutex_unlock(&d.lock);
	return sent;
}

// prioritise makes its thread a real-time one. For a container a kernel with
// CONFIG_RT_GROUP_SCHED and cgroups of version 1 refuses SCHED_RR, but not SCHED_DEADLINE:
// 20 ms of each 200 are enough for a thousand signals.
static int prioritise(void) {
	struct sched_param rr = {.sched_priority = 1};
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} edf = {.size = sizeof edf, .policy = 6, .runtime = 20000000, .deadline = 200000000, .period = 200000000}; // sched_setattr(2)
	int refused = pthread_setschedparam(pthread_self(), SCHED_RR, &rr);
	return refused && syscall(SYS_sched_setattr, 0, &edf, 0) == 0 ? 0 : refused;
}

static void *run(void *refused) {
	*(int *)refused = prioritise();
	pthread_barrier_wait(&d.started);
	for (int sent; (sent = fire()) >= 0;) {
		uint64_t n = 1;
		ssize_t ignored = sent > 0 ? write(d.eventfd, &n, sizeof n) : 0; // it does not block, and cannot overflow
		ignored = read(d.timer, &n, sizeof n);                            // fire finds what is due
		(void)ignored;
	}
	return NULL;
}

int deadline_start(int eventfd, int *refused) {
	pthread_mutexattr_t inherit;
	sigset_t all, before;
	int err;
	if (atomic_flag_test_and_set(&d.running)) return EBUSY;
	d.next = INT64_MAX;
	d.eventfd = eventfd;
	d.ending = d.used = 0;
	if ((d.timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) < 0) {
		err = errno;
		atomic_flag_clear(&d.running);
		return err;
	}
	pthread_mutexattr_init(&inherit);
	pthread_mutexattr_setprotocol(&inherit, PTHREAD_PRIO_INHERIT);
	pthread_mutex_init(&d.lock, &inherit);
	pthread_mutexattr_destroy(&inherit);
	pthread_barrier_init(&d.started, NULL, 2);
	sigfillset(&all); // Go's signals are for Go's threads
	pthread_sigmask(SIG_SETMASK, &all, &before);
	err = pthread_create(&d.thread, NULL, run, refused);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (err) {
		close(d.timer);
		atomic_flag_clear(&d.running);
		return err;
	}
	pthread_setname_np(d.thread, "deadline"); // for people
	pthread_barrier_wait(&d.started); // refused is the caller's
	pthread_barrier_destroy(&d.started);
	return 0;
}

int deadline_arm(int pidfd, int64_t at) {
	int slot = 0;
	pthread_mutex_lock(&d.lock);
	while (slot < d.used && d.slots[slot].state != UNUSED) slot++;
	if (slot == SLOTS) {
		slot = -1;
	} else {
		d.slots[slot] = (struct slot){.state = ARMED, .pidfd = pidfd, .at = at};
		if (slot == d.used) d.used++;
		if (at < d.next) set(at);
	}
	pthread_mutex_unlock(&d.lock);
	return slot;
}

void deadline_move(int slot, int64_t at) {
	pthread_mutex_lock(&d.lock);
	if (d.slots[slot].state == ARMED) {
		d.slots[slot].at = at;
		if (at < d.next) set(at);
	}
	pthread_mutex_unlock(&d.lock);
}

int deadline_disarm(int slot) {
	pthread_mutex_lock(&d.lock);
	int armed = d.slots[slot].state == ARMED;
	if (armed) d.slots[slot].state = UNUSED;
	pthread_mutex_unlock(&d.lock);
	return armed;
}

int deadline_take(int slot, struct deadline_sent *sent) {
	pthread_mutex_lock(&d.lock);
	int done = d.slots[slot].state == SENT;
	if (done) {
		*sent = d.slots[slot].sent;
		d.slots[slot].state = UNUSED;
	}
	pthread_mutex_unlock(&d.lock);
	return done;
}

void deadline_end(void) {
	pthread_mutex_lock(&d.lock);
	d.ending = 1;
	set(0);
	pthread_mutex_unlock(&d.lock);
	pthread_join(d.thread, NULL);
	close(d.timer);
}

void deadline_free(void) {
	pthread_mutex_destroy(&d.lock);
	atomic_flag_clear(&d.running);
}
