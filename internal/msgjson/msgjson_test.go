package msgjson

import (
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/message"
)

func TestBodiesThatAreNoTextComeAsBase64(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	m := &message.Message{
		Topic: "orders", Queue: allocate.Queue{Topic: "orders", Broker: "b", ID: 3}, Offset: 7, Tag: "new", Keys: []string{"k"},
		Properties: map[string]string{"p": "1"}, BornTime: at, StoreTime: at, ReconsumeTimes: 2, Body: []byte(`say "hi"`),
	}
	head := `{"topic":"orders","broker":"b","queue":3,"offset":7,"tag":"new","keys":["k"],"properties":{"p":"1"},` +
		`"born":"2026-01-02T02:04:05Z","stored":"2026-01-02T02:04:05Z","reconsume_times":2,`
	for _, c := range []struct {
		body []byte
		want string
	}{
		{[]byte(`say "hi"`), `"body":"say \"hi\""}`},
		{nil, `"body":""}`},
		{[]byte{0xff, 0}, `"body_base64":"/wA="}`},
	} {
		m.Body = c.body
		got, err := Append([]byte("> "), m)
		if want := "> " + head + c.want + "\n"; err != nil || string(got) != want {
			t.Errorf("%q: %v\n%s\nwant\n%s", c.body, err, got, want)
		}
	}
}
