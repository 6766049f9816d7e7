// The deadline thread. It is in C because a thread of Go's needs a processor of
// Go's scheduler after each system call: where all are held by threads that the
// kernel does not run, or a garbage collection begins, it would wait for them,
// whatever its own priority is.
#define _GNU_SOURCE
#include "thread.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { waiting, disarmed, sent };

struct armed {
	struct armed *next;
	int pidfd;
	uint64_t pid, start;
	_Atomic int64_t at; // ns of CLOCK_MONOTONIC
	_Atomic int state;
	struct result result; // set before it is in over
};

struct thread {
	pthread_t id;
	int timer; // timerfd, of the earliest deadline
	int wake;  // eventfd: something has changed
	int report;
	struct journal *journal; // NULL for none
	_Atomic int closing;
	_Atomic(struct armed *) incoming; // armed, not known to the thread yet
	_Atomic(struct armed *) over;     // sent or disarmed, not taken yet
	struct armed *taken;              // of the taker
};

static int64_t now_ns(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// ring never blocks: an eventfd takes 2^64-2 rings before somebody reads.
static void ring(int fd) {
	uint64_t one = 1;
	(void)!write(fd, &one, sizeof one);
}

// put adds a chain to a list that many put on and one takes from, without a lock.
static void put(_Atomic(struct armed *) *list, struct armed *chain) {
	if (chain == NULL)
		return;
	struct armed *last = chain;
	while (last->next != NULL)
		last = last->next;
	struct armed *first = atomic_load(list);
	do
		last->next = first;
	while (!atomic_compare_exchange_weak(list, &first, chain));
}

// note is seen by the next agent once the count says so, whole.
static void note(struct journal *j, uint64_t pid, uint64_t start) {
	if (j == NULL)
		return;
	uint64_t n = j->count;
	j->entries[n % JOURNAL_ENTRIES].pid = pid;
	j->entries[n % JOURNAL_ENTRIES].start = start;
	__atomic_store_n(&j->count, n + 1, __ATOMIC_RELEASE);
}

// terminate looks first (pidfd_open(2)): a zombie takes a signal without an error.
static int terminate(struct journal *j, struct armed *a) {
	struct pollfd gone = {.fd = a->pidfd, .events = POLLIN};
	if (poll(&gone, 1, 0) > 0)
		return ESRCH;
	note(j, a->pid, a->start);
	return syscall(SYS_pidfd_send_signal, a->pidfd, SIGTERM, NULL, 0) == 0 ? 0 : errno;
}

static void send_one(struct thread *t, struct armed *a) {
	int expected = waiting;
	if (!atomic_compare_exchange_strong(&a->state, &expected, sent))
		return;
	a->result.err = terminate(t->journal, a);
	a->result.at = now_ns();
	a->result.sent = 1;
}

// fire sends what is due, and hands it over. It returns what is left, and when
// the next of that is due: 0 is never.
static struct armed *fire(struct thread *t, struct armed *all, int64_t *next) {
	struct armed *left = NULL, *over = NULL;
	int64_t now = now_ns();
	*next = 0;
	while (all != NULL) {
		struct armed *a = all;
		int64_t at = atomic_load(&a->at);
		all = a->next;
		if (atomic_load(&a->state) == waiting && at > now) {
			a->next = left;
			left = a;
			if (*next == 0 || at < *next)
				*next = at;
			continue;
		}
		send_one(t, a);
		a->next = over;
		over = a;
	}
	if (over != NULL) {
		put(&t->over, over);
		ring(t->report);
	}
	return left;
}

static void *run(void *arg) {
	struct thread *t = arg;
	struct pollfd fds[] = {{.fd = t->wake, .events = POLLIN}, {.fd = t->timer, .events = POLLIN}};
	struct armed *all = NULL;
	while (!atomic_load(&t->closing)) {
		uint64_t count;
		(void)!read(t->wake, &count, sizeof count); // EAGAIN: it was the timer
		for (struct armed *a = atomic_exchange(&t->incoming, NULL), *next; a != NULL; a = next) {
			next = a->next;
			a->next = all;
			all = a;
		}
		int64_t next;
		all = fire(t, all, &next);
		struct itimerspec at = {.it_value = {.tv_sec = next / 1000000000, .tv_nsec = next % 1000000000}};
		timerfd_settime(t->timer, TFD_TIMER_ABSTIME, &at, NULL); // cannot fail with these arguments
		if (poll(fds, 2, -1) < 0)
			nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); // ENOMEM; a real-time thread must not spin
	}
	put(&t->over, atomic_exchange(&t->incoming, NULL));
	put(&t->over, all);
	ring(t->report);
	return NULL;
}

int deadline_start(struct thread **out, int report, struct journal *journal, int *refused) {
	struct thread *t = calloc(1, sizeof *t);
	if (t == NULL)
		return ENOMEM;
	t->report = report;
	t->journal = journal;
	t->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	t->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int err = t->timer < 0 || t->wake < 0 ? errno : 0;
	if (err == 0) {
		sigset_t all, old; // signals of the process are for Go's threads
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &old);
		pthread_attr_t attr;
		pthread_attr_init(&attr);
		pthread_attr_setstacksize(&attr, 128 << 10); // it is locked into memory
		err = pthread_create(&t->id, &attr, run, t);
		pthread_attr_destroy(&attr);
		pthread_sigmask(SIG_SETMASK, &old, NULL);
	}
	if (err != 0) {
		deadline_free(t);
		return err;
	}
	pthread_setname_np(t->id, "deadline"); // for people
	// What the thread should ever make does not inherit it (sched(7)).
	*refused = pthread_setschedparam(t->id, SCHED_RR | SCHED_RESET_ON_FORK, &(struct sched_param){.sched_priority = 1});
	*out = t;
	return 0;
}

void deadline_end(struct thread *t) {
	atomic_store(&t->closing, 1);
	ring(t->wake);
	pthread_join(t->id, NULL);
}

void deadline_free(struct thread *t) {
	if (t->timer >= 0)
		close(t->timer);
	if (t->wake >= 0)
		close(t->wake);
	free(t);
}

struct armed *deadline_arm(struct thread *t, int pidfd, uint64_t pid, uint64_t start, int64_t at, uintptr_t handle) {
	struct armed *a = calloc(1, sizeof *a);
	if (a == NULL)
		abort(); // as Go does without memory
	a->pidfd = pidfd;
	a->pid = pid;
	a->start = start;
	a->result.handle = handle;
	atomic_store(&a->at, at);
	put(&t->incoming, a);
	ring(t->wake);
	return a;
}

void deadline_move(struct thread *t, struct armed *a, int64_t to) {
	if (atomic_exchange(&a->at, to) != to)
		ring(t->wake);
}

int deadline_disarm(struct thread *t, struct armed *a) {
	int expected = waiting;
	if (!atomic_compare_exchange_strong(&a->state, &expected, disarmed))
		return expected == disarmed;
	ring(t->wake);
	return 1;
}

int deadline_take(struct thread *t, struct result *r) {
	if (t->taken == NULL)
		t->taken = atomic_exchange(&t->over, NULL);
	struct armed *a = t->taken;
	if (a == NULL)
		return 0;
	t->taken = a->next;
	close(a->pidfd);
	*r = a->result;
	free(a);
	return 1;
}
