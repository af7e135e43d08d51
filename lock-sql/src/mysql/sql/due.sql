-- :item :name :holder :lease :waiter_lease. A row of what renew.sql renews.
SELECT :item AS item, :name AS name, :holder AS holder, :lease AS lease, :waiter_lease AS waiter_lease
