/*
The protocol of leases for one job: matches, leases, adoption, fences, several servers, the watchdog's deadline, restore.

States are named as in the code: those of the job in `pilotage_server.core.jobs.states`. docs/reference/lease-protocol.md
explains the model. Each alternative of the loop is one transaction of a server, one act of a pilot or its watchdog, one
fault, or a tick of the clock. Faults need no names where doing nothing is the fault: a message that is never delivered
is lost, and a pilot that never acts is dead or stopped. Only the watchdog acts in time: the clock waits for it.

Macros for the checks of `test_lease_protocol.py`: MARGIN, MAX_STARTS, RESTORES, RESCHEDULES, the mutants NO_…, and
REACH, a claim that is to be violated, so that the check shows what the model can do.
*/

#ifndef LEASE
#define LEASE 4
#endif
#ifndef MARGIN
#define MARGIN 2	/* more than a clock may be slow in one lease, which is 1 */
#endif
#ifndef MAX_STARTS
#define MAX_STARTS 0	/* 0 = no limit */
#endif
#ifndef RESTORES
#define RESTORES 0
#endif
#ifndef RESCHEDULES
#define RESCHEDULES 0
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 2	/* for each incarnation of the database, so that the model is finite */
#endif
#ifndef REACH
#define REACH false
#endif

#if MAX_STARTS
#define COUNT_START starts++
#else
#define COUNT_START skip
#endif
#ifdef REACHES
#define SEEN(event) event = true
#else
#define SEEN(event) skip
#endif
#define PILOTS 2
#define SERVERS 2
#define NONE 255

mtype = { ABSENT, WAITING, MATCHED, RUNNING, DONE, FAILED }
mtype = { IDLE, SENT, RENEWED, LEASE_LOST }		/* a heartbeat, and its answer */
mtype = { ASKED, GRANTED }				/* a request for a job, and its answer */
mtype = { STARTED, EXITED, KILLED }			/* what a pilot reports of its attempt */

/* The database: the job, the lease of its last attempt, the fence. Times are what is left of them. */
typedef Database {
	mtype state;
	byte attempt;		/* number of the last attempt: the incarnation's first number plus the count */
	byte count;
	byte pilot;
	byte lease;
	byte fence;
	bool lost;		/* the last attempt was lost by silence, so that a late report re-adopts it */
	byte outcomes;		/* outcomes recorded */
	bool restored;		/* the fence is that of a restore: an end of this attempt says nothing of a lost one */
	byte serial		/* what only the model knows: which start the last attempt is */
}
Database db, backup;
byte incarnation, restores, reschedules, serials, starts;
bool acknowledged, submitting, has_backup, adopted, restored_late;

/* What a server has read before it writes, if `reads`. Each server keeps nothing else. */
typedef Server { bool reads; byte attempt }
Server servers[SERVERS];

/* A pilot with one slot and its watchdog. `deadline` is what is left until the watchdog kills the payload. */
typedef Pilot {
	bool alive;		/* its payload */
	byte attempt; byte serial;
	byte deadline;
	bool slow;		/* its clock has been slow by a tick, once in the model: so in any one lease */
	mtype request; byte request_age; byte granted; byte granted_serial;
	mtype heartbeat; byte heartbeat_age; byte renews;
	bool exited;		/* the payload has ended by itself: the outcome is still to be reported */
	bool reports; mtype report; byte reported; byte reported_serial	/* a message, which may be late or arrive twice */
}
Pilot pilots[PILOTS];

#define IS_LEASED (db.state == MATCHED || db.state == RUNNING)
#define IS_ADOPTABLE(p) (db.state == WAITING && db.lost && db.pilot == p && db.attempt == pilots[p].reported)
#define IS_LIVE(p) (IS_LEASED && db.pilot == p && db.attempt == pilots[p].reported)

#ifdef RESTORE_FENCE_ENDS_BY_REPORT
#define KEEPS_FENCE false
#else
#define KEEPS_FENCE db.restored
#endif

#ifdef NO_CAS
#define CAS(s) true
#else
#define CAS(s) (db.state == WAITING && db.fence == 0 && db.attempt == servers[s].attempt)
#endif

inline check() {
	assert(!(pilots[0].alive && pilots[1].alive));			/* no two attempts are alive at once */
	assert(db.outcomes <= 1);					/* one outcome is recorded */
	assert(MAX_STARTS == 0 || starts <= MAX_STARTS);			/* with a limit, no start exceeds it */
	assert(!acknowledged || db.state != ABSENT);			/* an acknowledged job is not lost */
	assert(!(REACH))
}

inline end_payload(p) {
	pilots[p].alive = false; pilots[p].deadline = 0;
	pilots[p].heartbeat = IDLE; pilots[p].heartbeat_age = 0; pilots[p].renews = 0
}

inline forget(p) {
	pilots[p].attempt = 0; pilots[p].serial = 0
}

inline put_report(p, kind) {
	pilots[p].reports = true; pilots[p].report = kind;
	pilots[p].reported = pilots[p].attempt; pilots[p].reported_serial = pilots[p].serial
}

inline record(p) {
	assert(pilots[p].reported_serial == db.serial);			/* the outcome is of this attempt */
	db.state = DONE; db.outcomes++; db.lost = false
}

/* `deadline`: counted from the sending of the call, on the pilot's clock. */
inline set_deadline(p, age) {
	pilots[p].deadline = LEASE - MARGIN - age
}

inline tick_pilot(p) {
	/* Where the clock is slow by a tick, nothing that the pilot counts moves. */
	if
	:: !pilots[p].slow && pilots[p].alive -> pilots[p].slow = true
	:: true ->
		if :: pilots[p].deadline > 0 -> pilots[p].deadline-- :: else fi;
		if :: pilots[p].request != IDLE && pilots[p].request_age < LEASE -> pilots[p].request_age++ :: else fi;
		if :: pilots[p].heartbeat != IDLE && pilots[p].heartbeat_age < LEASE -> pilots[p].heartbeat_age++ :: else fi
	fi
}

inline forget_reads() {
	servers[0].reads = false; servers[0].attempt = 0;
	servers[1].reads = false; servers[1].attempt = 0
}

init {
	byte p, s;
	atomic {
		db.state = ABSENT; db.pilot = NONE; backup.state = ABSENT;
		pilots[0].request = IDLE; pilots[0].heartbeat = IDLE; pilots[0].report = STARTED;
		pilots[1].request = IDLE; pilots[1].heartbeat = IDLE; pilots[1].report = STARTED
	}
	do
	/* Submission: the answer follows the commit. */
	:: atomic { !acknowledged && !submitting && db.state == ABSENT ->
#ifdef EARLY_ACKNOWLEDGEMENT
		submitting = true; acknowledged = true; check() }
	:: atomic { submitting -> submitting = false;
#else
		acknowledged = true;
#endif
		db.state = WAITING; check() }

	/* A server is killed: it loses what it has read. */
	:: atomic { submitting || servers[0].reads || servers[1].reads -> submitting = false; forget_reads(); check() }

	/* A match: a server reads the job, and binds it later by compare-and-set. */
	:: atomic { db.state == WAITING && db.fence == 0 && db.count < ATTEMPTS ->
		select(s : 0 .. SERVERS - 1);
		servers[s].reads = true; servers[s].attempt = db.attempt; s = 0 }
	:: atomic { servers[0].reads || servers[1].reads ->
		if :: servers[0].reads -> s = 0 :: servers[1].reads -> s = 1 fi;
		if
		:: pilots[0].request == ASKED -> p = 0
		:: pilots[1].request == ASKED -> p = 1
		:: else -> p = NONE
		fi;
		if
		:: p != NONE && CAS(s) && db.count < ATTEMPTS ->
			serials++; db.count++;
#ifdef NO_INCARNATION
			db.attempt = db.count;
#else
			db.attempt = incarnation * 4 + db.count;
#endif
			db.state = MATCHED; db.pilot = p; db.lease = LEASE; db.lost = false; db.serial = serials;
			pilots[p].request = GRANTED; pilots[p].granted = db.attempt; pilots[p].granted_serial = serials
		:: else
		fi;
		servers[s].reads = false; servers[s].attempt = 0; s = 0; p = 0; check() }

	/* A lease ends: the server may be late. A job with one start fails, for its payload may have started. */
	:: atomic { IS_LEASED && db.lease == 0 ->
		db.lost = true;
#ifndef NO_LIMIT
		if :: MAX_STARTS == 1 -> db.state = FAILED :: else -> db.state = WAITING fi;
#else
		db.state = WAITING;
#endif
		check() }

	/* The owner reschedules: the job is fenced until the attempt has ended or its lease has. */
	:: atomic { reschedules < RESCHEDULES && IS_LEASED ->
		reschedules++; db.state = WAITING; db.lost = false;
#ifndef NO_FENCE
		db.fence = (db.lease > db.fence -> db.lease : db.fence);
#endif
		check() }

	/* Heartbeats and reports arrive at a server, reports perhaps late or twice. */
	:: atomic { pilots[0].heartbeat == SENT || pilots[1].heartbeat == SENT ->
		if :: pilots[0].heartbeat == SENT -> p = 0 :: pilots[1].heartbeat == SENT -> p = 1 fi;
		if
		:: IS_LEASED && db.pilot == p && db.attempt == pilots[p].renews ->
			db.lease = LEASE; pilots[p].heartbeat = RENEWED
		:: else -> pilots[p].heartbeat = LEASE_LOST
		fi; p = 0; check() }
	:: atomic { pilots[0].reports || pilots[1].reports ->
		if :: pilots[0].reports -> p = 0 :: pilots[1].reports -> p = 1 fi;
		if
		:: IS_LIVE(p) || IS_ADOPTABLE(p) ->
			if
			:: pilots[p].report == STARTED ->
				if :: !IS_LEASED -> db.lease = LEASE; SEEN(adopted) :: else fi;
				db.state = RUNNING; db.lost = false
			:: pilots[p].report == EXITED -> record(p)
			:: pilots[p].report == KILLED && IS_LEASED ->
				db.state = (MAX_STARTS == 1 -> FAILED : WAITING)
			:: else
			fi
		:: else ->
			if
			:: db.fence > 0 && !KEEPS_FENCE && pilots[p].report != STARTED && pilots[p].reported == db.attempt && db.pilot == p ->
				db.fence = 0
			:: else
			fi
		fi;
		if	/* it is answered, or the message stays and arrives again */
		:: pilots[p].reports = false; pilots[p].reported = 0; pilots[p].reported_serial = 0;
			if :: pilots[p].exited -> pilots[p].exited = false; forget(p) :: else fi;
			pilots[p].report = STARTED
		:: true
		fi; p = 0; check() }

	/* A pilot requests a job, and starts the payload if the lease has not ended on its clock. */
	:: atomic { !pilots[0].alive && !pilots[0].exited && pilots[0].request == IDLE -> pilots[0].request = ASKED; pilots[0].request_age = 0 }
	:: atomic { !pilots[1].alive && !pilots[1].exited && pilots[1].request == IDLE -> pilots[1].request = ASKED; pilots[1].request_age = 0 }
	:: atomic { pilots[0].request == GRANTED || pilots[1].request == GRANTED ->
		if :: pilots[0].request == GRANTED -> p = 0 :: pilots[1].request == GRANTED -> p = 1 fi;
		if
		:: !pilots[p].alive && pilots[p].request_age < LEASE - MARGIN ->
			COUNT_START; pilots[p].alive = true; set_deadline(p, pilots[p].request_age);
			pilots[p].attempt = pilots[p].granted; pilots[p].serial = pilots[p].granted_serial;
			pilots[p].heartbeat = IDLE; pilots[p].heartbeat_age = 0; pilots[p].renews = 0
		:: else
		fi;
		pilots[p].request = IDLE; pilots[p].request_age = 0; pilots[p].granted = 0; pilots[p].granted_serial = 0;
		p = 0; check() }
	:: atomic { pilots[0].request != IDLE && pilots[0].request_age == LEASE ->	/* it gives the request up */
		pilots[0].request = IDLE; pilots[0].request_age = 0; pilots[0].granted = 0; pilots[0].granted_serial = 0 }
	:: atomic { pilots[1].request != IDLE && pilots[1].request_age == LEASE ->
		pilots[1].request = IDLE; pilots[1].request_age = 0; pilots[1].granted = 0; pilots[1].granted_serial = 0 }

	/* A pilot sends one heartbeat at a time; the answer counts from its sending. */
	:: atomic { (pilots[0].alive && pilots[0].heartbeat == IDLE) || (pilots[1].alive && pilots[1].heartbeat == IDLE) ->
		if
		:: pilots[0].alive && pilots[0].heartbeat == IDLE -> p = 0
		:: pilots[1].alive && pilots[1].heartbeat == IDLE -> p = 1
		fi;
		pilots[p].heartbeat = SENT; pilots[p].heartbeat_age = 0; pilots[p].renews = pilots[p].attempt; p = 0 }
	:: atomic { pilots[0].heartbeat != IDLE || pilots[1].heartbeat != IDLE ->
		if :: pilots[0].heartbeat != IDLE -> p = 0 :: pilots[1].heartbeat != IDLE -> p = 1 fi;
		if
		:: pilots[p].heartbeat == RENEWED && pilots[p].alive && pilots[p].renews == pilots[p].attempt &&
		   pilots[p].heartbeat_age + pilots[p].deadline < LEASE - MARGIN ->
#ifdef COUNT_FROM_ANSWER
			set_deadline(p, 0)
#else
			set_deadline(p, pilots[p].heartbeat_age)
#endif
		:: pilots[p].heartbeat == LEASE_LOST && pilots[p].alive && pilots[p].renews == pilots[p].attempt ->
			end_payload(p); put_report(p, KILLED); forget(p)
		:: else		/* a lost message, or an answer that changes nothing */
		fi;
		pilots[p].heartbeat = IDLE; pilots[p].heartbeat_age = 0; pilots[p].renews = 0; p = 0; check() }

	/* The payload runs; the pilot reports the start, and the end for as long as nobody answers. */
	:: atomic { (pilots[0].alive && !pilots[0].reports) || (pilots[1].alive && !pilots[1].reports) ->
		if
		:: pilots[0].alive && !pilots[0].reports -> p = 0
		:: pilots[1].alive && !pilots[1].reports -> p = 1
		fi;
		put_report(p, STARTED); p = 0 }
	:: atomic { pilots[0].alive || pilots[1].alive ->
		if :: pilots[0].alive -> p = 0 :: pilots[1].alive -> p = 1 fi;
		end_payload(p); pilots[p].exited = true; put_report(p, EXITED); p = 0; check() }
	:: atomic { (pilots[0].exited && !pilots[0].reports) || (pilots[1].exited && !pilots[1].reports) ->
		if
		:: pilots[0].exited && !pilots[0].reports -> p = 0
		:: pilots[1].exited && !pilots[1].reports -> p = 1
		fi;
		put_report(p, EXITED); p = 0 }

	/* The watchdog kills at the deadline, whether its pilot is alive, stopped or dead. */
#ifndef NO_WATCHDOG
	:: atomic { (pilots[0].alive && pilots[0].deadline == 0) || (pilots[1].alive && pilots[1].deadline == 0) ->
		if
		:: pilots[0].alive && pilots[0].deadline == 0 -> p = 0
		:: pilots[1].alive && pilots[1].deadline == 0 -> p = 1
		fi;
		end_payload(p);
		if :: put_report(p, KILLED) :: true fi;			/* its pilot may be dead */
		forget(p);
		p = 0; check() }
#endif

	/* A backup, and its restore, which begins a new incarnation. All servers begin anew. */
	:: atomic { restores < RESTORES && !has_backup && acknowledged -> has_backup = true;
		backup.state = db.state; backup.attempt = db.attempt; backup.count = db.count; backup.pilot = db.pilot;
		backup.lost = db.lost; backup.outcomes = db.outcomes; backup.serial = db.serial }
	:: atomic { restores < RESTORES && has_backup -> has_backup = false; restores++;
		if :: backup.serial != db.serial -> SEEN(restored_late) :: else fi;
		db.state = backup.state; db.attempt = backup.attempt; db.count = backup.count; db.pilot = backup.pilot;
		db.lost = backup.lost; db.outcomes = backup.outcomes; db.serial = backup.serial;
		backup.state = ABSENT; backup.attempt = 0; backup.count = 0; backup.pilot = 0;
		backup.lost = false; backup.outcomes = 0; backup.serial = 0;
#ifndef NO_INCARNATION
		incarnation++; db.count = 0;
#endif
		db.lease = (IS_LEASED -> LEASE : 0); db.fence = 0;
#ifndef NO_RESTORE_FENCE
#ifdef NO_RESTORE_FENCE_OF_LEASED
		if :: db.state == WAITING -> db.fence = LEASE; db.lost = false :: else fi;
#else
		db.fence = LEASE; db.lost = false;
#endif
		db.restored = true;
#endif
		forget_reads(); check() }

	/* Time passes. The clock waits only for the watchdog. */
	:: atomic {
#ifndef NO_WATCHDOG
		!(pilots[0].alive && pilots[0].deadline == 0) && !(pilots[1].alive && pilots[1].deadline == 0) &&
#endif
		acknowledged ->
		if :: db.lease > 0 -> db.lease-- :: else fi;
		if :: db.fence > 0 -> db.fence-- :: else fi;
		if :: db.fence == 0 -> db.restored = false :: else fi;
		tick_pilot(0); tick_pilot(1); check() }
	od
}
