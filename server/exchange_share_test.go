// SPDX-License-Identifier: MPL-2.0

package server

import (
	"fmt"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/api/pb"
)

// kept keeps what is sent: the moment of sending is the test's.
type kept struct {
	pb.ServerService_ExchangeClient
	messages []*pb.Questions
}

func (k *kept) Send(q *pb.Questions) error {
	k.messages = append(k.messages, q)
	return nil
}

// String is id:path of what was sent, by message.
func (k *kept) String() string {
	var all []string
	for _, m := range k.messages {
		var one []string
		for _, q := range m.GetAll() {
			one = append(one, fmt.Sprintf("%d:%s?%s", q.GetId(), q.GetQuery().GetPath(), q.GetQuery().GetRawQuery()))
		}
		all = append(all, strings.Join(one, " "))
	}
	return strings.Join(all, ", ")
}

func newKept() (*exchange, *kept) {
	x, k := newExchange(), &kept{}
	x.open(k)
	return x, k
}

func (x *exchange) numbers() string {
	return fmt.Sprintf("waiting %d, away %d, asked %d, same %d", x.waiting, x.away, len(x.asked), len(x.same))
}

func answerTo(id uint64) *pb.Answer {
	return &pb.Answer{Id: id, Answer: &pb.QueryResponse{Body: []byte(fmt.Sprint(id))}}
}

// Those who ask the same before it is sent share the question; nobody gets an answer to a question that was sent before.
func TestSameQuestionIsShared(t *testing.T) {
	x, k := newKept()
	first := x.put(&pb.QueryRequest{Path: "/a"})
	var later []*asking
	for range 3 {
		later = append(later, x.put(&pb.QueryRequest{Path: "/a"}))
	}
	other, stale := x.put(&pb.QueryRequest{Path: "/b"}), x.put(&pb.QueryRequest{Path: "/a", RawQuery: "stale"})
	if got, want := k.String(), "1:/a?"; got != want {
		t.Fatalf("sent %s, want %s", got, want)
	}
	if err := x.send(k); err != nil {
		t.Fatal(err)
	}
	if got, want := k.String(), "1:/a?, 2:/a? 3:/b? 4:/a?stale"; got != want {
		t.Fatalf("sent %s, want %s", got, want)
	}
	if got, want := x.numbers(), "waiting 0, away 6, asked 4, same 0"; got != want || !x.shares {
		t.Errorf("%s, shares %v, want %s", got, x.shares, want)
	}
	x.give([]*pb.Answer{answerTo(2), answerTo(9), answerTo(1), {Id: 3}, answerTo(4), answerTo(4)})
	for i, tt := range []struct {
		a    *asking
		want string
	}{{first, "1"}, {later[0], "2"}, {later[1], "2"}, {later[2], "2"}, {stale, "4"}} {
		if <-tt.a.done; string(tt.a.answer.GetBody()) != tt.want {
			t.Errorf("asker %d: %v", i, tt.a.answer)
		}
	}
	select {
	case <-other.done:
		t.Error("no answer is taken for one")
	default:
	}
	x.close()
	if <-other.done; other.answer != nil {
		t.Errorf("answer %v of a stream that has ended", other.answer)
	}
}

// What asks for more than a read of the moment is never shared.
func TestWritesAreNotShared(t *testing.T) {
	x, _ := newKept()
	x.put(&pb.QueryRequest{Path: "/first"})
	if a, b := x.put(&pb.QueryRequest{Path: "/a", Method: "PUT"}), x.put(&pb.QueryRequest{Path: "/a", Method: "PUT"}); a == b {
		t.Error("two writes are one")
	}
	if a, b := x.put(&pb.QueryRequest{Path: "/a"}), x.put(&pb.QueryRequest{Path: "/a", Method: "PUT"}); a == b {
		t.Error("a write is answered as a read")
	}
}

// One who leaves takes nothing from the others; when all have left, nobody joins the question, and its answer is dropped.
func TestSharersLeave(t *testing.T) {
	x, k := newKept()
	ask := func() *asking { return x.put(&pb.QueryRequest{Path: "/a"}) }
	first := ask()
	one, two := ask(), ask()
	x.forget(one)
	if err := x.send(k); err != nil {
		t.Fatal(err)
	}
	three := ask()
	x.forget(three) // before it was sent
	four := ask()
	if four == three {
		t.Error("a question that was given up is joined")
	}
	x.forget(first) // after it was sent
	x.give([]*pb.Answer{answerTo(1), answerTo(2)})
	if <-two.done; string(two.answer.GetBody()) != "2" {
		t.Errorf("the one who stayed: %v", two.answer)
	}
	x.forget(two) // too late, and no harm
	if err := x.send(k); err != nil {
		t.Fatal(err)
	}
	x.give([]*pb.Answer{answerTo(3), answerTo(4)})
	if <-four.done; string(four.answer.GetBody()) != "4" {
		t.Errorf("the one who came after: %v", four.answer)
	}
	if got, want := x.numbers(), "waiting 0, away 0, asked 0, same 0"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A few that differ go at once; many, and those that share, gather until they are half as many as those that are away, or fill a message.
func TestQuestionsGather(t *testing.T) {
	for _, tt := range []struct {
		away, waiting int
		shares, want  bool
	}{
		{1, 1, true, true}, {2, 1, true, true}, {3, 1, true, false}, {10, 4, true, false}, {10, 5, true, true},
		{1000, maxTogether - 1, true, false}, {1000, maxTogether, true, true},
		{gatherFrom - 1, 1, false, true}, {gatherFrom, 1, false, false}, {gatherFrom, gatherFrom / 2, false, true}, {1000, 1, false, false},
	} {
		x, k := newKept()
		x.away, x.shares = tt.away, tt.shares
		for i := range tt.waiting {
			x.put(&pb.QueryRequest{Path: fmt.Sprintf("/%d", i)})
		}
		if got := x.enough(); got != tt.want || len(k.messages) > 0 {
			t.Errorf("%d wait, and %d are away: %v, sent %v", tt.waiting, tt.away, got, k)
		}
	}
}
