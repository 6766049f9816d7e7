#include <stdint.h>

struct deadline_sent {
	int64_t at; // CLOCK_MONOTONIC, nanoseconds
	int error;  // errno, 0 for none
};

// deadline_start starts the thread, which adds to the eventfd after it has sent. refused
// is errno if the kernel refuses real-time priority. It returns errno: EBUSY if there is
// a thread.
int deadline_start(int eventfd, int *refused);

// deadline_arm returns the slot, -1 if all are in use. The caller keeps the pidfd open
// until the slot is free again, and uses no free slot.
int deadline_arm(int pidfd, int64_t at);
void deadline_move(int slot, int64_t at);

// deadline_disarm frees the slot, and returns 0, where the signal was sent.
int deadline_disarm(int slot);

// deadline_take frees the slot of a signal that was sent; it returns 0 if it was not.
int deadline_take(int slot, struct deadline_sent *);

// deadline_end ends the thread, which then sends nothing. Slots may still be disarmed and
// taken until deadline_free, after which another thread may be started.
void deadline_end(void);
void deadline_free(void);
