// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/wanfed/wanfed/internal/testutil"
)

// TestRun_WaitsForCompleteFiles writes the certificate and the key one after
// the other. Run must not read the files before they are unchanged for settle.
// If the files keep changing, Run must read them after settleMax.
func TestRun_WaitsForCompleteFiles(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		ca := newCA(t, CARequest{})
		f := filesIn(t.TempDir())
		put(t, f, ca.Cert, issueFrom(t, ca, srv1))
		i, log := loadLogged(t, f)
		events := make(chan fsnotify.Event)
		w := &watcher{i: i, events: events, watched: map[string]bool{}}
		start(t, w.run)
		wait := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		write := func(path string, b []byte) {
			t.Helper()
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			events <- fsnotify.Event{}
			synctest.Wait()
		}
		wait(time.Second)
		p := issueFrom(t, ca, srv1)
		write(f.Cert, p.Cert)
		wait(settle - 1)
		write(f.Key, p.Key)
		wait(settle - 1)
		log.none(t)
		wait(1)
		log.take(t, serialOf(t, p))

		p = issueFrom(t, ca, srv1)
		write(f.Cert, p.Cert)
		for range settleMax / (settle / 2) {
			wait(settle / 2)
			log.none(t)
			events <- fsnotify.Event{} // event of another file
		}
		wait(settle / 2)
		log.take(t, "its old content stays in use")
		log.none(t)
	})
}

// TestRun_ChecksPeriodically checks that Run reads the files periodically
// without notifications, and reloads a certificate when it becomes valid.
func TestRun_ChecksPeriodically(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		ca := newCA(t, CARequest{})
		f := filesIn(t.TempDir())
		put(t, f, ca.Cert, issueFrom(t, ca, srv1))
		i, log := loadLogged(t, f)
		w := &watcher{i: i, watched: map[string]bool{}}
		start(t, w.run)
		synctest.Wait()
		later := srv1
		later.Now = time.Now().Add(3*time.Minute + backdate)
		p := issueFrom(t, ca, later)
		put(t, f, ca.Cert, p)
		time.Sleep(recheck)
		synctest.Wait()
		log.take(t, "is not valid before")
		time.Sleep(recheck)
		synctest.Wait()
		log.none(t)
		time.Sleep(2 * recheck)
		synctest.Wait()
		log.take(t, serialOf(t, p))
		log.none(t)
	})
}

func TestRun_WarnsOfExpiry(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		ca := newCA(t, CARequest{Days: 20})
		f := filesIn(t.TempDir())
		put(t, f, ca.Cert, issueFrom(t, ca, CertRequest{Role: RoleServer, DC: "dc1", Node: "srv1", Days: 16}))
		i, log := loadLogged(t, f)
		w := &watcher{i: i, watched: map[string]bool{}}
		start(t, w.run)
		wait := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		wait(9*day - time.Hour)
		log.none(t)
		wait(2 * time.Hour)
		log.take(t, "certificate expires soon")
		wait(day)
		log.none(t)
		// A new certificate ends the warnings. It is valid for 10 days, until
		// its CA expires. This is too short for a warning at 7 days.
		p := issueFrom(t, ca, srv1)
		put(t, f, ca.Cert, p)
		wait(2 * time.Minute)
		log.take(t, serialOf(t, p))
		log.none(t)
		wait(10 * day)
		for _, left := range []string{"left=72h0m0s", "left=48h0m0s", "left=24h0m0s", "left=12h0m0s", "left=1h0m0s"} {
			log.take(t, left)
		}
		log.take(t, "certificate has expired and all peers reject it")
		log.none(t)
	})
}
