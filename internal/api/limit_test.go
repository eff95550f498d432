package api

import (
	"fmt"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/prometheus/client_golang/prometheus"
)

func TestANamespaceLeavesStreamsToOthersHoweverManyAccountsItMints(t *testing.T) {
	told, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	account := func(namespace, name string) *caller {
		return &caller{user: authenticationv1.UserInfo{Username: "system:serviceaccount:" + namespace + ":" + name}, home: namespace}
	}
	for _, c := range []struct {
		each, all, alone, together int
	}{
		{8, 512, 6, 8},
		{512, 16, 3, 4},
	} {
		s := newStreams(Limits{Streams: c.each, AllStreams: c.all}, told)
		open := func(who ...*caller) (n int) {
			for _, one := range who {
				for range c.all {
					if _, err := s.begin(one); err == nil {
						n++
					}
				}
			}
			return n
		}
		if got := open(account("eager", "deployer")); got != c.alone {
			t.Errorf("%+v: one account has %d", c, got)
		}
		minted := make([]*caller, 100)
		for i := range minted {
			minted[i] = account("eager", fmt.Sprint(i))
		}
		if got := open(minted...) + c.alone; got != c.together {
			t.Errorf("%+v: a namespace has %d", c, got)
		}
		user := &caller{user: authenticationv1.UserInfo{Username: "jane"}}
		if got := open(user); got != c.together {
			t.Errorf("%+v: another user has %d", c, got)
		}
	}
}
